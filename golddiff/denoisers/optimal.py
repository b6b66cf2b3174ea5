"""Optimal: the exact empirical-Bayes denoiser, one logit an image (paper, Eq. 2)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from golddiff.contributions import Contribution, values_at
from golddiff.denoisers.base import Estimator
from golddiff.kernels.rows import squared_distances, weighted_sums
from golddiff.noise import precision
from golddiff.parallel import results_held
from golddiff.posterior import Posterior
from golddiff.support import AnySupport, Support, whole

# Logits are (queries x images) float64: this many images at a time keeps them in memory limits.
IMAGES_AT_ONCE = 65_536

IMAGES_PER_CONTRIBUTION = 512


class Optimal(Estimator):
    """D(x) = sum_i softmax_i(-||x - x_i||^2 / (2 sigma^2)) x_i.

    Source: paper Eq. 2; De Bortoli 2022, Kamb & Ganguli 2024. It minimises the training loss
    exactly, and so returns training images as sigma falls.
    """

    def posterior(self, x: NDArray[np.float32], sigma: float, support: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a support; one location an image."""
        total = Posterior.empty(len(x), 1, self.store.d)
        for part in support.split(IMAGES_AT_ONCE):
            total = total.merge(self._part(x, sigma, part))
        return total

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Logits, weights and their differences; sums of the tasks in flight; two posteriors."""
        d, at_once = self.store.d, min(images, IMAGES_AT_ONCE)
        return 4 * d, 36 * at_once + 4 * d * results_held() + 64 * d

    def contributions(
        self,
        x: NDArray[np.float32],
        sigma: float,
        support: AnySupport,
        top: int = 1,
        pixel: int | None = None,
    ) -> Iterator[Contribution]:
        """The terms of one query (D,), one location; see the base class."""
        store = self.store
        for part in whole(support).split(IMAGES_PER_CONTRIBUTION):
            distances = squared_distances(store.flat, part.rows, x[None], store.scale, store.offset)
            logits = distances * -precision(sigma) + part.log_importance()
            yield Contribution(part.rows, logits, values_at(store, part.rows, pixel))

    def _part(self, x: NDArray[np.float32], sigma: float, support: Support) -> Posterior:
        store = self.store
        distances = squared_distances(store.flat, support.rows, x, store.scale, store.offset)
        logits = distances * -precision(sigma)
        if support.log_weights is not None:
            logits += support.log_weights
        log_max = logits.max(axis=1, keepdims=True)
        weights = np.exp(logits - log_max)
        # Below float32's resolution by far, even summed over 10^9 images; zeros are skipped.
        weights[weights < 1e-18] = 0
        sums = weighted_sums(
            store.flat, support.rows, weights.astype(np.float32), store.scale, store.offset
        )
        return Posterior(log_max, weights.sum(axis=1, keepdims=True), sums)
