"""A weighted mean of denoisers, the weights changing with the noise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.posterior import Float
from golddiff.support import Prior
from golddiff.system.errors import ArgumentError

Weights = Sequence[tuple[float, Sequence[float]]]


class Blend(Denoiser):
    """D(x) = sum_j w_j(sigma) D_j(x), with w_j >= 0 and sum_j w_j = 1.

    Where x0 is known to lie in [-1, 1] (a store of pixels), each D_j(x) is first clipped to it:
    E[x0 | x] lies there too, and clipping brings anything outside nearer to every point inside.

    Args:
        denoisers: over one store.
        weights: (sigma, one weight a denoiser) pairs, interpolated linearly in log sigma; below
            the first and above the last sigma their weights hold.

    Raises:
        ArgumentError: no denoisers, or of different stores; weights that are negative or do not
            sum to 1; a sigma twice, or not above 0.
    """

    def __init__(self, denoisers: Sequence[Denoiser], weights: Weights) -> None:
        if len(denoisers) == 0:
            raise ArgumentError("denoisers: got none, expected at least one")
        for denoiser in denoisers:
            if not isinstance(denoiser, Denoiser):
                raise ArgumentError(f"denoisers: got {type(denoiser).__name__} among them")
            if denoiser.priors:
                raise ArgumentError("denoisers: one has log weights, which a blend does not take")
            if denoiser.store is not denoisers[0].store:
                raise ArgumentError("denoisers: got different stores, expected one")
        super().__init__(denoisers[0].store)
        self.denoisers = tuple(denoisers)
        self._levels, self._weights = _checked(weights, len(denoisers))

    @property
    def weights(self) -> list[tuple[float, tuple[float, ...]]]:
        """The (sigma, weights) pairs, sigma ascending."""
        return [
            (math.exp(level), tuple(row))
            for level, row in zip(self._levels.tolist(), self._weights.tolist(), strict=True)
        ]

    def weights_at(self, sigma: float) -> Float:
        """The weight of each denoiser at a noise level; they sum to 1."""
        return np.array(
            [np.interp(math.log(sigma), self._levels, column) for column in self._weights.T]
        )

    def running_at(self, sigma: float) -> list[Denoiser]:
        """The denoisers that have weight at a noise level: those that run."""
        weights = self.weights_at(sigma)
        return [d for d, weight in zip(self.denoisers, weights, strict=True) if weight > 0]

    def denoise(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> NDArray[np.float32]:
        """The weighted mean (b, D); a denoiser without weight at this sigma does not run."""
        out = np.zeros_like(x)
        for denoiser, weight in zip(self.denoisers, self.weights_at(sigma), strict=True):
            if weight > 0:
                out += np.float32(weight) * in_range(denoiser, denoiser.denoise(x, sigma, prior))
        return out


def in_range(denoiser: Denoiser, x0: NDArray[np.float32]) -> NDArray[np.float32]:
    """Predictions clipped to [-1, 1] where the store holds pixels; others as they are."""
    return np.clip(x0, -1, 1) if denoiser.store.is_pixels else x0


def _checked(weights: Weights, count: int) -> tuple[Float, Float]:
    if len(weights) == 0:
        raise ArgumentError("weights: got none, expected at least one (sigma, weights) pair")
    for sigma, row in weights:
        if not 0 < sigma < math.inf:
            raise ArgumentError(f"weights: got sigma {sigma!r}, expected a finite number above 0")
        values = np.asarray(row, np.float64)
        if values.shape != (count,) or not (values >= 0).all() or abs(values.sum() - 1) > 1e-6:
            raise ArgumentError(
                f"weights: got {row!r} at sigma {sigma:g}, expected {count} numbers >= 0 that sum "
                "to 1, one a denoiser"
            )
    ordered = sorted(weights, key=lambda pair: pair[0])
    levels = np.log([float(sigma) for sigma, _ in ordered])
    if (np.diff(levels) <= 0).any():
        raise ArgumentError("weights: got the same sigma twice")
    table = np.array([list(row) for _, row in ordered], np.float64)
    return levels, table / table.sum(axis=1, keepdims=True)
