"""The contribution of each training image at each location, for attribution.

Every estimator is sum_i exp(l_i) v_i / sum_i exp(l_i) with a logit l_i at each location and a
value v_i at each output. The fast kernels keep the sums only; this module yields the terms in
float64, a few images at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.posterior import Posterior
from golddiff.support import ABSENT, AnySupport, RuleSupport, Support
from golddiff.system.numbers import F32, F64, I64

# Share of an estimator's memory limit for caching terms between the two passes; beyond it, the
# second pass recomputes them.
CACHE_SHARE = 0.25


@dataclass(frozen=True)
class Ranking:
    """The ``top`` highest scores so far at each of L locations, unordered."""

    scores: F64  # (L, top) float64; -inf in unused entries
    rows: I64  # (L, top) rows of the scored training images
    positions: I64  # (L, top) pixel of that image (y * W + x); -1 if scores are of whole images

    @classmethod
    def empty(cls, locations: int, top: int) -> Ranking:
        """A ranking without scores."""
        none = np.full((locations, top), -1)
        return cls(np.full((locations, top), -np.inf), none, none)

    def offered(self, scores: F64, rows: I64) -> Ranking:
        """The ranking updated with whole images (k,) of scores (L, k)."""
        if np.all(scores.max(axis=1) <= self.scores.min(axis=1)):
            return self
        of_images = (np.broadcast_to(numbers, scores.shape) for numbers in (rows, np.int64(-1)))
        return self.merge(Ranking(scores, *of_images))

    def merge(self, other: Ranking) -> Ranking:
        """The highest scores of both rankings; of equal ones, those that come first."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        both, top = Ranking(*(np.concatenate(p, axis=1) for p in pairs)), self.scores.shape[1]
        # By value: which of equal scores argpartition keeps depends on the processor.
        least = np.partition(both.scores, -top, axis=1)[:, -top, None]
        above, equal = both.scores > least, both.scores == least
        room = top - above.sum(axis=1, keepdims=True)
        kept = above | (equal & (equal.cumsum(axis=1) <= room))
        return both._at(np.nonzero(kept)[1].reshape(-1, top))

    def descending(self) -> Ranking:
        """Sorted by descending score; ties go to the lower row."""
        return self._at(np.lexsort((self.rows, -self.scores), axis=1))

    def _at(self, order: I64) -> Ranking:
        return Ranking(*(np.take_along_axis(a, order, axis=1) for a in vars(self).values()))


@dataclass(frozen=True)
class Contribution:
    """The terms of some images in one query's posterior.

    Attributes:
        rows: (k,) rows of the images.
        logits: (L, k) float64, log importance weights included; for Kamb, whose images contribute
            at several positions, the log of the sum over positions.
        values: (k, V) each image's value at each output; for Kamb, its posterior mean over
            positions. V = C * (values per channel) as in :class:`golddiff.posterior.Posterior`.
        best: the highest (image, position) pairs of these images, if there are positions.
    """

    rows: I64
    logits: F64
    values: NDArray[np.floating]
    best: Ranking | None = None


def log_sum_exp(logits: F64) -> F64:
    """Log of the sum of exp over the last axis."""
    highest = logits.max(axis=-1)
    return highest + np.log(np.exp(logits - highest[..., None]).sum(axis=-1))


def mixed(
    parts: Sequence[Support], logits_of: Callable[[Support], F64], shares: F64
) -> Iterator[tuple[Support, F64]]:
    """Each part with the logs of its images' mean weights (L, k) in several posteriors.

    Args:
        parts: the images, in parts.
        logits_of: maps a part to its images' logits (M, k) in M posteriors.
        shares: (M, L) share of each posterior in the mean at each location.
    """
    total = reduce(np.logaddexp, (log_sum_exp(logits_of(part)) for part in parts))
    for part in parts:
        weights = shares.T @ np.exp(logits_of(part) - total[:, None])
        with np.errstate(divide="ignore"):
            # -inf would leave a ranking with images that are none.
            yield part, np.log(weights).clip(min=ABSENT)


def values_at(store: Any, rows: I64, pixel: int | None) -> F32:
    """Images as float32 (k, D), or their channels at one pixel (y * W + x), (k, C)."""
    return store.stored.values(rows, None if pixel is None else outputs_at(store, pixel))


def outputs_at(store: Any, pixel: int) -> I64:
    """Indices of the output values of one pixel, one per channel, (C,)."""
    channels, height, width = store.shape
    return np.arange(channels) * (height * width) + pixel


class Weights:
    """The weight of every image at every location, a part of the images at a time.

    The constructor makes a first pass over the images to normalise the weights; iteration is the
    second pass. Memory holds one part, or all terms up to a quarter of ``memory_limit``. ``pixel``,
    y * W + x, restricts a query (D,) to the locations of this pixel.

    Attributes:
        top: number of main sources ranked at each location, at most the number of images.
        effective: (L,) effective number of images, exp of the entropy (in nats) of the weights at
            a location: N for N equal weights, 1 if one image has all the weight.
        rounding: largest estimated error of an output that is weighed in float32.
    """

    def __init__(
        self,
        estimator: Any,
        support: AnySupport,
        x: F32,
        sigma: float,
        top: int,
        pixel: int | None = None,
    ) -> None:
        self.top = min(top, len(support))
        listed = support.with_rows if isinstance(support, RuleSupport) else support
        self._parts: Callable[[], Iterator[Contribution]] = partial(
            estimator.store.contributions, estimator, x, sigma, listed, self.top, pixel
        )
        self._cached: list[Contribution] = []
        cached_bytes, limit = 0, CACHE_SHARE * estimator.memory_limit
        sums: Posterior | None = None
        ranking: Ranking | None = None
        for part in self._parts():
            sums = _sums(part.logits) if sums is None else sums.merge(_sums(part.logits))
            ranking = ranking or Ranking.empty(len(part.logits), self.top)
            ranking = (
                ranking.offered(part.logits, part.rows)
                if part.best is None
                else ranking.merge(part.best)
            )
            cached_bytes += part.logits.nbytes + part.values.nbytes
            if cached_bytes <= limit:
                self._cached.append(part)
            else:
                self._cached.clear()
        assert sums is not None
        assert ranking is not None  # a support has at least one image
        self._highest, self._total = sums.log_max[0, :, None], sums.total[0, :, None]
        self.effective: F64 = np.exp((sums.log_max + np.log(sums.total) - sums.mean())[0])
        self._ranking = ranking.descending()
        best = self._ranking.scores[None, :, 0]  # of a patch, if there are positions
        totals = sums.total * np.exp(sums.log_max - best)
        self.rounding = float(Posterior(best, totals, sums.weighted).rounding().max())

    def __iter__(self) -> Iterator[tuple[Contribution, F64]]:
        """Yield each part with its weights (L, k), which sum to 1 per location over all parts."""
        for part in self._cached or self._parts():
            yield part, self._weights(part.logits)

    def ranked(self) -> Ranking:
        """The main sources of each location with weights as scores, heaviest first."""
        best = self._ranking
        return Ranking(self._weights(best.scores), best.rows, best.positions)

    def _weights(self, logits: F64) -> F64:
        """Normalised weights (L, k); adding log(total) to a logit near 1e13 would round it off."""
        return np.exp(logits - self._highest) / self._total


def _sums(logits: F64) -> Posterior:
    """The partial posterior whose values are the logits (L, k) themselves, as one query.

    Its mean is E[l], so that the entropy of the weights is log sum exp(l) - E[l].
    """
    return Posterior.of_logits(logits, np.where(np.isneginf(logits), 0.0, logits).T)
