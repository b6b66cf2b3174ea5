"""The posterior accumulator: running (max, sum of exp, weighted sum), merged exactly.

A posterior mean over a training set is sum_i exp(l_i) v_i / sum_i exp(l_i), with one logit l_i per
image. Each part of the set yields a partial posterior of three arrays. Partial posteriors merge
exactly (online softmax), in any order, so they may come from chunks, threads or machines.
Source: the "unbiased streaming softmax" of the paper, Sec. 3.2.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike, NDArray

SKIPPED = 4e-18  # exp(-40), the weight below which the loops in float32 skip images
ROUNDING = 2.0**-21  # relative error of a logit in float32, with the sum over its mask


def weighted_sum(weights: NDArray[np.float64], values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Values (k, D) of k images, weighted at each location (L, k) and summed: (D,)."""
    by_channel = values.reshape(len(values), -1, len(weights))
    total: NDArray[np.float64] = np.einsum("lk,kcl->cl", weights, by_channel, dtype=np.float64)
    return total.ravel()


@dataclass
class Posterior:
    """Partial posterior over a part of the training set.

    Attributes:
        log_max: (b, L) largest logit; -inf if there were no images.
        total: (b, L) sum of exp(logit - log_max).
        weighted: (b, D) sum of exp(logit - log_max) * value.

    L is D if each output value has its own logits (PCA), 1 if one logit serves the whole image
    (Optimal), and H*W if one logit serves all channels of a pixel (Kamb; D = C*H*W).
    """

    log_max: NDArray[np.float64]
    total: NDArray[np.float64]
    weighted: NDArray[np.float64]

    def fits(self, queries: int) -> bool:
        """Whether the arrays have the shapes above for a number of queries b."""
        log_max, total, weighted = (np.shape(array) for array in vars(self).values())
        is_of_each = len(total) == len(weighted) == 2 and total[0] == weighted[0] == queries
        return is_of_each and log_max == total and weighted[1] % max(total[1], 1) == 0

    @classmethod
    def empty(cls, b: int, locations: int, d: int, dtype: DTypeLike = np.float64) -> Posterior:
        """The posterior of no images: the neutral element of ``merge``."""
        total, weighted = np.zeros((b, locations), dtype), np.zeros((b, d), dtype)
        return cls(np.full_like(total, -np.inf), total, weighted)

    @classmethod
    def of_logits(cls, logits: NDArray[np.float64], values: NDArray[np.floating]) -> Posterior:
        """One query's partial posterior, from its images' logits (L, k) and values (k, D)."""
        highest = logits.max(axis=1)
        # With patches, a part can have weight 0 at a location; -inf - -inf would be NaN.
        weights = np.exp(logits - np.where(np.isneginf(highest), 0.0, highest)[:, None])
        weighted = weighted_sum(weights, values)[None]
        return cls(highest[None], weights.sum(axis=1)[None], weighted)

    def in_float64(self) -> Posterior:
        """The posterior of a loop that sums in float32, ready to be merged."""
        return Posterior(*(array.astype(np.float64) for array in vars(self).values()))

    @classmethod
    def of_queries(cls, parts: Sequence[Posterior], queries: Sequence[int]) -> Posterior:
        """The posteriors of disjoint sets of queries as one, in query order.

        ``queries`` are the query indices of the rows of all parts.
        """
        order = np.argsort(queries)
        names = ("log_max", "total", "weighted")
        return cls(*(np.concatenate([getattr(p, name) for p in parts])[order] for name in names))

    def of(self, queries: Sequence[int]) -> Posterior:
        """The posterior of a subset of the queries."""
        return Posterior(*(array[list(queries)] for array in vars(self).values()))

    def merge(self, other: Posterior) -> Posterior:
        """The posterior over both parts (exact, associative, commutative)."""
        both = Posterior(self.log_max, self.total.copy(), self.weighted.copy())
        both.add(other)
        return both

    def add(self, other: Posterior) -> None:
        """In-place :meth:`merge`; own sums are rescaled only if a logit of ``other`` is larger."""
        log_max = np.maximum(self.log_max, other.log_max)
        # Avoid NaN from -inf - -inf: if neither part has images, any scale gives 0.
        safe = np.where(np.isneginf(log_max), 0.0, log_max)
        if (self.log_max < log_max).any():
            own_scale = np.exp(self.log_max - safe)
            self.total *= own_scale
            self.weighted *= self._spread(own_scale)
        other_scale = np.exp(other.log_max - safe)
        self.total += other.total * other_scale
        self.weighted += other.weighted * self._spread(other_scale)
        self.log_max = log_max

    def add_to(self, queries: Sequence[int], other: Posterior) -> None:
        """:meth:`add` to a subset of the queries."""
        subset = self.of(queries)
        subset.add(other)
        for name, array in vars(subset).items():
            getattr(self, name)[list(queries)] = array

    def mean(self) -> NDArray[np.float64]:
        """The posterior mean, (b, D)."""
        if not np.all(self.total > 0):
            raise ZeroDivisionError("the posterior mean of no images is not defined")
        return self.weighted / self._spread(self.total)

    def rounding(self) -> NDArray[np.float64]:
        """Estimated error (b, L) of a mean whose logits were computed in float32.

        With an error e of the logits, images other than the heaviest have at most exp(2 e) times
        their computed weight, and a mean moves by about e times that.
        """
        logit_errors = ROUNDING * np.abs(self.log_max)
        others = (self.total - 1 + SKIPPED) * np.exp(np.minimum(2 * logit_errors, 99))
        return logit_errors * np.minimum(others, 1)

    def _spread(self, per_location: NDArray[np.float64]) -> NDArray[np.float64]:
        """Repeat a (b, L) array over the channels that share a location, giving (b, D)."""
        return np.tile(per_location, self.weighted.shape[1] // per_location.shape[1])
