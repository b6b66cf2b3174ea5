"""Optimal: the exact empirical-Bayes denoiser, one logit an image (paper, Eq. 2)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Estimator
from golddiff.estimators.contributions import Contribution, values_at
from golddiff.kernels.rows import ROWS_PER_TASK, distances_of, squared_distances, sums_of
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.residency import at_hand
from golddiff.support import AnySupport, Support, whole
from golddiff.system.parallel import in_order, results_held

SMALL_TASK, PIECES = 64, 8  # images of a task at least; tasks of a golden subset
SMALL = 4096  # images; of smaller supports, each of its own query, queries go side by side

IMAGES_PER_CONTRIBUTION = 512


class Optimal(Estimator):
    """D(x) = sum_i softmax_i(-||x - x_i||^2 / (2 sigma^2)) x_i.

    Source: paper Eq. 2; De Bortoli 2022, Kamb & Ganguli 2024. It minimises the training loss
    exactly, and so returns training images as sigma falls.
    """

    alike = True

    def posterior(self, x: NDArray[np.float32], sigma: float, support: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a support; one location an image."""
        store, gain = self.store, precision(sigma)
        # All threads have something to do, and none does it in too small pieces.
        size = min(ROWS_PER_TASK, max(SMALL_TASK, len(support.rows) // PIECES))

        def task(part: Support) -> Posterior:
            # Distances and sums at once: rows that lie apart are read from the file once.
            with at_hand(store.flat, part.rows) as (values, places):
                logits = distances_of(values, places, x, store.scale, store.offset) * -gain
                if part.log_weights is not None:
                    logits += part.log_weights
                log_max = logits.max(axis=1, keepdims=True)
                weights = np.exp(logits - log_max)
                # Below float32's resolution by far, even of 10^9 images; zeros are skipped.
                weights[weights < 1e-18] = 0
                sums = sums_of(values, places, weights, store.scale, store.offset)
            return Posterior(log_max, weights.sum(axis=1, keepdims=True), sums)

        total = Posterior.empty(len(x), 1, store.d)
        for posterior in in_order(task, support.split(size)):
            total.add(posterior)
        return total

    def denoise_each(
        self, x: NDArray[np.float32], sigma: float, supports: Sequence[AnySupport]
    ) -> NDArray[np.float32]:
        """See the base class."""
        apart = len(x) > 1 and supports[0] is not supports[-1]
        if self.store.shards is not None or not apart or max(map(_size, supports)) >= SMALL:
            return super().denoise_each(x, sigma, supports)

        def one(i: int) -> NDArray[np.float32]:
            return super(Optimal, self).denoise_each(x[i : i + 1], sigma, supports[i : i + 1])

        return np.concatenate(list(in_order(one, range(len(x)))))

    def means_without(
        self,
        x: NDArray[np.float32],
        sigma: float,
        label: int | None,
        left_out: Sequence[int | None],
    ) -> NDArray[np.float32]:
        """See the base class; one scan serves all queries, but for the few images left out."""
        rows, out = self.store.rows_of(label), {row for row in left_out if row is not None}
        rest = rows[~np.isin(rows, list(out))]
        if self.store.shards is not None or len(rest) == 0:
            return super().means_without(x, sigma, label, left_out)
        size = self.queries_at_once(len(rest))
        means = []
        for i in range(0, len(x), size):
            shared = self.posterior(x[i : i + size], sigma, Support(rest))
            for j, row in enumerate(left_out[i : i + size]):
                part = Posterior(*(array[j : j + 1] for array in vars(shared).values()))
                few = np.array(sorted(out - {row}), np.int64)
                if len(few):
                    part = part.merge(self.posterior(x[i + j : i + j + 1], sigma, Support(few)))
                means.append(part.mean().astype(np.float32))
        return np.concatenate(means)

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Sums of the tasks in flight; two posteriors."""
        d = self.store.d
        return 4 * d, 4 * d * results_held() + 64 * d

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


def _size(support: AnySupport) -> int:
    return len(support.rows)
