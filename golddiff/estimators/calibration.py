"""How far denoisers are from the posterior mean, measured on training images they have not seen.

Under x = x0 + sigma eps, with m(x) = E[x0 | x] of the distribution that the images come from,

    E ||D(x) - x0||^2 = E ||m(x) - x0||^2 + E ||D(x) - m(x)||^2

for every denoiser D: its error on images that it was not made of says, up to a constant that no
denoiser changes, how far it is from m, which a network trained on the same loss approximates too.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.blend import in_range
from golddiff.estimators.golden import Schedule
from golddiff.estimators.mirror import Symmetrised
from golddiff.posterior import Float
from golddiff.store.images import ImageStore
from golddiff.store.posteriors import whole
from golddiff.support import Prior, Support

# An error of 0 (images all alike) would have all the weight, and none where two are 0.
LEAST_ERROR = 1e-12
LEFT_OUT = 32  # images to measure on; a tenth of a small store
FEWEST = 20  # images; with fewer there is nothing to measure on
SHUFFLED = 10_000_000


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
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: Prior, seed: int
    ) -> Sequence[Support]:
        """The schedule's support of each query, without the images left out."""
        found = self.schedule.supports(store, x, sigma, label, seed)
        return [self._rest(whole(support)) for support in found]

    def _rest(self, support: Support) -> Support:
        kept = ~np.isin(support.rows, self.rows)
        if not kept.any():
            return support
        weights = support.log_weights
        return Support(support.rows[kept], None if weights is None else weights[kept])


def denoising_errors(
    denoisers: Sequence[Denoiser], rows: NDArray[np.int64], sigmas: Sequence[float], seed: int = 0
) -> Float:
    """Mean squared error per value of each denoiser at each noise level, (sigmas, denoisers).

    Args:
        denoisers: over one store, none of which may use the images of ``rows``.
        rows: (n,) training images to noise and to denoise; all denoisers see the same noise.
        sigmas: noise levels.
        seed: of the noise.
    """
    truth = denoisers[0].store.values(rows)
    generator = np.random.default_rng(seed)
    errors = np.empty((len(sigmas), len(denoisers)))
    for i, sigma in enumerate(sigmas):
        x = truth + np.float32(sigma) * generator.standard_normal(truth.shape, np.float32)
        for j, denoiser in enumerate(denoisers):
            off = in_range(denoiser, denoiser.denoise(x, sigma, None)).astype(np.float64) - truth
            errors[i, j] = max(float((off**2).mean()), LEAST_ERROR)
    return errors


def inverse_error_weights(errors: Float) -> Float:
    """Weights proportional to 1 / sqrt(error) over the last axis; they sum to 1.

    Between 1 / error, the least squares weights of denoisers whose errors are uncorrelated (Bates &
    Granger 1969), and equal ones. Least squares with the correlations measured errs less on noised
    images, but its samples drift further from a network's (measured: docs/results/likeness.md).

    Args:
        errors: mean squared errors, > 0.
    """
    inverse = np.sqrt(errors.min(axis=-1, keepdims=True) / errors)
    weights: Float = inverse / inverse.sum(axis=-1, keepdims=True)
    return weights


def is_symmetric(denoiser: Denoiser, rows: NDArray[np.int64], sigmas: Sequence[float]) -> bool:
    """Whether a denoiser errs no more on images left out, averaged with its own mirror image.

    By the mean log error over noise levels. Points have no mirror image.
    """
    if len(denoiser.store.shape) != 3:
        return False
    errors = denoising_errors([denoiser, Symmetrised(denoiser)], rows, sigmas)
    alone, averaged = np.log(errors).mean(axis=0)
    return bool(averaged <= alone)


def left_out(n: int) -> NDArray[np.int64]:
    """The rows, ascending, to measure denoisers on: up to 32, a tenth of few images."""
    if n < FEWEST:
        return np.empty(0, np.int64)
    generator, count = np.random.default_rng(0), min(LEFT_OUT, n // 10)
    if n <= SHUFFLED:
        drawn = generator.permutation(n)[:count]
    else:  # a shuffle of so many would take gigabytes
        drawn = generator.choice(n, count, replace=False, shuffle=False)
    rows: NDArray[np.int64] = np.sort(drawn)
    return rows
