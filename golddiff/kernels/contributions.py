"""What each training image contributes at each location: the parts that attribution is made of.

Every estimator is sum_i exp(l_i) v_i / sum_i exp(l_i) with a logit l_i at each location and a
value v_i at each output. The fast kernels only ever hold the sums; here are the terms, a few
images at a time, in float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.posterior import Posterior
from golddiff.support import AnySupport
from golddiff.system.numbers import F32, F64, I64

# Of an estimator's memory limit: terms that fit are kept between the two passes, not recomputed.
KEPT_SHARE = 0.25


@dataclass(frozen=True)
class Ranking:
    """The highest scores met so far at each of L locations, in no order."""

    scores: F64  # (L, top) float64; -inf where fewer were met
    rows: I64  # (L, top) rows of the training images that they belong to
    # (L, top) pixel of that image (y * W + x), or None where a source has none
    positions: I64 | None = None

    @classmethod
    def empty(cls, locations: int, top: int) -> Ranking:
        """The ranking of nothing."""
        return cls(np.full((locations, top), -np.inf), np.full((locations, top), -1))

    def offered(self, scores: F64, rows: I64) -> Ranking:
        """The ranking after images (k,) with scores (L, k) came along."""
        if np.all(scores.max(axis=1) <= self.scores.min(axis=1)):
            return self
        return self.merge(Ranking(scores, np.broadcast_to(rows, scores.shape)))

    def merge(self, other: Ranking) -> Ranking:
        """The highest of both."""
        top = self.scores.shape[1]
        scores = np.concatenate([self.scores, other.scores], axis=1)
        kept = np.argpartition(-scores, top - 1, axis=1)[:, :top]
        rows = np.concatenate([self.rows, other.rows], axis=1)
        positions = None
        if other.positions is not None:
            mine = np.full_like(self.rows, -1) if self.positions is None else self.positions
            positions = np.take_along_axis(
                np.concatenate([mine, other.positions], axis=1), kept, axis=1
            )
        return Ranking(
            np.take_along_axis(scores, kept, axis=1),
            np.take_along_axis(rows, kept, axis=1),
            positions,
        )

    def descending(self) -> Ranking:
        """The same, highest first; of equal scores the lower row first."""
        order = np.lexsort((self.rows, -self.scores), axis=1)
        return Ranking(
            np.take_along_axis(self.scores, order, axis=1),
            np.take_along_axis(self.rows, order, axis=1),
            None if self.positions is None else np.take_along_axis(self.positions, order, axis=1),
        )


@dataclass(frozen=True)
class Contribution:
    """The terms of some images in one query's posterior.

    Attributes:
        rows: (k,) rows of the images.
        logits: (L, k) float64, log importance weights included. Where an image contributes at
            several positions (Kamb), the log of its sum over them.
        values: (k, V) what each image contributes at each output: its own value there, or its own
            posterior mean over positions (Kamb). V = C * (values a channel) as in
            :class:`golddiff.posterior.Posterior`.
        best: the highest (image, position) pairs among these images, where there are positions.
    """

    rows: I64
    logits: F64
    values: NDArray[np.floating]
    best: Ranking | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the two large arrays."""
        return self.logits.nbytes + self.values.nbytes


def log_sum_exp(logits: F64) -> F64:
    """Log of the sum of exp over the last axis."""
    highest = logits.max(axis=-1)
    total: F64 = highest + np.log(np.exp(logits - highest[..., None]).sum(axis=-1))
    return total


def values_at(store: Any, rows: I64, pixel: int | None) -> F32:
    """Images as float32 (k, D), or only their channels at one pixel (y * W + x), (k, C)."""
    if pixel is None:
        values: F32 = store.values(rows)
        return values
    columns = outputs_at(store, pixel)
    with store.stored.resident(rows) as (here, places):
        numbers = here.flat[places[:, None], columns].astype(np.float32)
        return here.scaled(numbers)  # type: ignore[no-any-return]


def outputs_at(store: Any, pixel: int) -> I64:
    """The output values of one pixel, one a channel, (C,)."""
    channels, height, width = store.shape
    outputs: I64 = np.arange(channels) * (height * width) + pixel
    return outputs


class Weights:
    """The weight of every image at every location, a part of the images at a time.

    A first pass over the images, at once, finds what the weights sum to; iterating is the second.
    Memory stays within a part, and what is kept where all terms fit in a quarter of the
    estimator's ``memory_limit``.

    Args:
        estimator: what weighs.
        support: the images weighed.
        x: (D,) query.
        sigma: noise level.
        top: main sources to rank at each location.
        pixel: only the locations of this pixel, y * W + x.

    Attributes:
        top: sources ranked: ``top``, or the number of images where that is fewer.
        effective: (L,) exp of the entropy (in nats) of the images' weights at a location: N where
            N images weigh the same, 1 where one has all the weight.
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
        self._parts: Callable[[], Iterator[Contribution]] = partial(
            estimator.store.contributions, estimator, x, sigma, support, self.top, pixel
        )
        self._kept: list[Contribution] | None = []
        kept_bytes, limit = 0, KEPT_SHARE * estimator.memory_limit
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
            kept_bytes += part.nbytes
            if kept_bytes > limit:
                self._kept = None
            elif self._kept is not None:
                self._kept.append(part)
        assert sums is not None
        assert ranking is not None  # a support has at least one image
        self._highest, self._total = sums.log_max[0, :, None], sums.total[0, :, None]
        self.effective: F64 = np.exp((sums.log_max + np.log(sums.total) - sums.mean())[0])
        self._ranking = ranking.descending()

    def __iter__(self) -> Iterator[tuple[Contribution, F64]]:
        """Each part with its weights (L, k); over all parts a location's sum to 1."""
        for part in self._parts() if self._kept is None else self._kept:
            yield part, self._weights(part.logits)

    def ranked(self) -> Ranking:
        """The main sources of each location, their weights as scores, heaviest first."""
        best = self._ranking
        return Ranking(self._weights(best.scores), best.rows, best.positions)

    def _weights(self, logits: F64) -> F64:
        """Of logits (L, k). The largest goes first: of 1e13, log(total) would be lost beside it."""
        weights: F64 = np.exp(logits - self._highest) / self._total
        return weights


def _sums(logits: F64) -> Posterior:
    """The partial posterior over some images of their own logits: for their total and entropy.

    One row; the images' values at a location are their logits there (L, k), so that the mean is
    E[l], and the entropy log sum exp(l) - E[l].
    """
    highest = logits.max(axis=1)
    # Patches near one image give all of a part the weight 0.
    e = np.exp(logits - np.where(np.isneginf(highest), 0.0, highest)[:, None])
    weighted = (e * np.where(e > 0, logits, 0.0)).sum(axis=1)
    return Posterior(highest[None], e.sum(axis=1)[None], weighted[None])


def mean_effective(estimator: Any, support: AnySupport, x: F32, sigma: float) -> float:
    """The effective number of images of one query (D,), averaged over locations."""
    return float(Weights(estimator, support, x, sigma, top=1).effective.mean())
