"""Weights of a blend by least squares on training images that its denoisers have not seen.

Under x = x0 + sigma eps the denoiser of least mean squared error is E[x0 | x] of the distribution
that the images come from, and for any other denoiser D

    E ||D(x) - x0||^2 = E ||E[x0 | x] - x0||^2 + E ||D(x) - E[x0 | x]||^2,

so the smaller its error on images that it was not made of, the nearer D is to that posterior mean,
which a network trained on the same loss approximates as well. No network is needed to measure it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from golddiff.denoisers.base import Denoiser
from golddiff.denoisers.blend import Weights, in_range
from golddiff.denoisers.golddiff import Schedule
from golddiff.posterior import Float
from golddiff.store import ImageStore
from golddiff.support import Support

RIDGE = 5e-3  # of the predictions' mean squared error


class LeavingOut:
    """A schedule whose golden subsets lack some images: those a denoiser is to be judged on.

    Args:
        schedule: chooses the subsets.
        rows: the images left out; a subset of nothing else keeps them.
    """

    def __init__(self, schedule: Schedule, rows: NDArray[np.int64]) -> None:
        self.schedule = schedule
        self.rows = rows

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k) of the schedule, those left out included."""
        return self.schedule.budgets(sigma, n)

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[Support]:
        """The schedule's support of each query, without the images left out."""
        found = self.schedule.supports(store, x, sigma, label, seed)
        return [self._rest(support) for support in found]

    def _rest(self, support: Support) -> Support:
        kept = ~np.isin(support.rows, self.rows)
        if not kept.any():
            return support
        weights = support.log_weights
        return Support(support.rows[kept], None if weights is None else weights[kept])


@dataclass(frozen=True)
class Calibration:
    """Weights of least squared error, and what they reach.

    Attributes:
        weights: (sigma, one weight a denoiser) pairs, for :class:`golddiff.denoisers.blend.Blend`.
        errors: mean squared error of the blend at each sigma, per value.
    """

    weights: Weights
    errors: list[float]

    def mean_log_error(self) -> float:
        """The average over noise levels: a level with little noise counts as one with much."""
        return float(np.mean(np.log(np.maximum(self.errors, 1e-12))))


def calibrate(
    denoisers: Sequence[Denoiser], rows: NDArray[np.int64], sigmas: Sequence[float], seed: int = 0
) -> Calibration:
    """The weights of least squared denoising error on some images.

    Args:
        denoisers: over one store, none of which may use the images of ``rows``.
        rows: (n,) training images to noise and to denoise.
        sigmas: noise levels to find weights for.
        seed: of the noise.
    """
    truth = denoisers[0].store.values(rows)
    generator = np.random.default_rng(seed)
    weights, errors = [], []
    for sigma in sigmas:
        x = truth + np.float32(sigma) * generator.standard_normal(truth.shape, np.float32)
        predictions = [in_range(d, d.denoise(x, sigma, None)) for d in denoisers]
        found = simplex_least_squares(predictions, truth)
        blended = sum(w * p.astype(np.float64) for w, p in zip(found, predictions, strict=True))
        weights.append((sigma, tuple(found.tolist())))
        errors.append(float(((blended - truth) ** 2).mean()))
    return Calibration(weights, errors)


def simplex_least_squares(
    predictions: Sequence[NDArray[np.float32]], truth: NDArray[np.float32]
) -> Float:
    """The w minimising ||sum_j w_j p_j - t||^2 with w_j >= 0 and sum_j w_j = 1.

    A little ridge draws the weights to equal ones where the predictions hardly differ, as at high
    noise, and some tens of images could not tell them apart.

    Args:
        predictions: J arrays of one shape.
        truth: of the same shape.
    """
    off = np.stack([(p.astype(np.float64) - truth).ravel() for p in predictions], axis=1)
    # Where the weights sum to 1, ||sum_j w_j p_j - t||^2 = w^T G w.
    gram = off.T @ off
    count = len(predictions)
    scale = float(np.trace(gram)) / count
    gram = (gram / scale if scale > 0 else gram) + RIDGE * np.eye(count)
    best, least = np.full(count, 1 / count), math.inf
    # The least of all w >= 0 is the least with sum 1 alone over one of the few sets of predictions.
    for size in range(1, count + 1):
        for kept in combinations(range(count), size):
            some = list(kept)
            w = np.linalg.solve(gram[np.ix_(some, some)], np.ones(size))
            w /= w.sum()
            error = float(w @ gram[np.ix_(some, some)] @ w)
            if (w >= 0).all() and error < least:
                best, least = np.zeros(count), error
                best[some] = w
    return best
