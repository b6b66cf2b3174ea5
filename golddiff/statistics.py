"""Mean and covariance factor of a training set: C = U diag(L) U^T, unbiased (N - 1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# 1024 products of two integers in -128..127 sum to at most 2^24, which float32 holds exactly:
# uint8 moments are exact integers and do not depend on the order of the images.
CHUNK = 1024


@dataclass(frozen=True)
class Factor:
    """Mean and covariance of a set of images in [-1, 1] units.

    Attributes:
        mean: (D,) float64.
        eigenvalues: (r,) float64, descending, all > 0; r = rank, at most min(D, N - 1).
        eigenvectors: (D, r) float64, orthonormal columns.
    """

    mean: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]
    eigenvectors: NDArray[np.float64]

    def shrinkage(self, sigma: float) -> NDArray[np.float64]:
        """The Wiener gains L / (L + sigma^2), (r,)."""
        gains: NDArray[np.float64] = self.eigenvalues / (self.eigenvalues + sigma**2)
        return gains

    def wiener_matrix(self, sigma: float, dtype: type = np.float64) -> NDArray[Any]:
        """W = U diag(L / (L + sigma^2)) U^T, (D, D), computed in ``dtype``."""
        vectors: NDArray[Any] = self.eigenvectors.astype(dtype, copy=False)
        matrix: NDArray[Any] = (vectors * self.shrinkage(sigma).astype(dtype)) @ vectors.T
        return matrix


@dataclass(frozen=True)
class Moments:
    """Sums over stored values v less a shift, of some images; those of parts of a set add up.

    Attributes:
        n: how many images.
        shift: 128 for uint8, 0 for floats.
        first: (D,) float64 sum of v - shift.
        second: (D, D) float64 sum of (v - shift)(v - shift)^T.
    """

    n: int
    shift: float
    first: NDArray[np.float64]
    second: NDArray[np.float64]

    def merge(self, other: Moments) -> Moments:
        """The moments of both parts together; exact for uint8."""
        return Moments(
            self.n + other.n, self.shift, self.first + other.first, self.second + other.second
        )

    def factor(self, scale: float, offset: float) -> Factor:
        """Mean and covariance factor of the images value = v * scale + offset.

        Raises:
            ZeroDivisionError: no images.
        """
        if self.n == 0:
            raise ZeroDivisionError("the covariance of no images is not defined")
        mean = torch.from_numpy(self.first) / self.n
        covariance = torch.from_numpy(self.second) - self.n * torch.outer(mean, mean)
        covariance *= scale**2 / max(self.n - 1, 1)
        eigenvalues, eigenvectors = torch.linalg.eigh(covariance)
        return _cleaned(
            (mean * scale + offset + scale * self.shift).numpy(),
            eigenvalues.flip(0).numpy(),
            eigenvectors.flip(1).numpy(),
        )


def moments(
    flat: NDArray[np.generic],
    rows: NDArray[np.int64] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Moments:
    """The moments of stored images (N, D), uint8 or float32, or of some rows of them."""
    n, d = len(flat) if rows is None else len(rows), flat.shape[1]
    shift = _shift(flat)
    first = torch.zeros(d, dtype=torch.float64)
    second = torch.zeros(d, d, dtype=torch.float64)
    for part in _chunks(n):
        values = _shifted(flat, rows, part)
        first += values.sum(0, dtype=torch.float64)
        second += values.T @ values
        progress(part.stop)
    return Moments(n, shift, first.numpy(), second.numpy())


def _shift(flat: NDArray[np.generic]) -> float:
    return 128.0 if flat.dtype == np.uint8 else 0.0


def _chunks(n: int) -> list[slice]:
    return [slice(i, min(i + CHUNK, n)) for i in range(0, n, CHUNK)]


def _shifted(
    flat: NDArray[np.generic], rows: NDArray[np.int64] | None, part: slice
) -> torch.Tensor:
    values = flat[part] if rows is None else flat[rows[part]]
    dtype = torch.float32 if flat.dtype == np.uint8 else torch.float64
    return torch.from_numpy(np.array(values)).to(dtype) - _shift(flat)


def covariance_factor(
    flat: NDArray[np.generic],
    scale: float,
    offset: float,
    rows: NDArray[np.int64] | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Factor:
    """Factor the covariance of the images value = flat * scale + offset.

    Args:
        flat: (N, D) uint8 or float32.
        scale: factor from stored to [-1, 1] units.
        offset: offset from stored to [-1, 1] units.
        rows: use these images only (a class); None for all.
        progress: called with the number of images done.

    Raises:
        ZeroDivisionError: no images.
    """
    n = len(flat) if rows is None else len(rows)
    if n == 0:
        raise ZeroDivisionError("the covariance of no images is not defined")
    if n <= flat.shape[1]:
        values = torch.cat([_shifted(flat, rows, part) for part in _chunks(n)]).double()
        return _factor_of_few(values, scale, offset + scale * _shift(flat))
    return moments(flat, rows, progress).factor(scale, offset)


def _factor_of_few(values: torch.Tensor, scale: float, offset: float) -> Factor:
    """Fewer images than dimensions: the (N, N) Gram matrix has the same eigenvalues."""
    n = len(values)
    mean = values.mean(0)
    centred = (values - mean) * scale
    gram = centred @ centred.T / max(n - 1, 1)
    eigenvalues, coefficients = torch.linalg.eigh(gram)
    keep = eigenvalues > 1e-12 * eigenvalues.max().clamp(min=1e-300)
    eigenvalues, coefficients = eigenvalues[keep].flip(0), coefficients[:, keep].flip(1)
    eigenvectors = centred.T @ coefficients / (eigenvalues * max(n - 1, 1)).sqrt()
    return _cleaned((mean * scale + offset).numpy(), eigenvalues.numpy(), eigenvectors.numpy())


def _cleaned(
    mean: NDArray[np.float64], eigenvalues: NDArray[np.float64], eigenvectors: NDArray[np.float64]
) -> Factor:
    """Drop directions that do not vary: what rounding leaves there is not a variance."""
    top = float(eigenvalues[0]) if len(eigenvalues) else 0.0
    keep = eigenvalues > 1e-13 * top
    return Factor(
        np.ascontiguousarray(mean),
        np.ascontiguousarray(eigenvalues[keep]),
        np.ascontiguousarray(eigenvectors[:, keep]),
    )
