"""The search of :mod:`golddiff.supports.index.search` over the shards of a training set.

Each shard compares its own images as a single store would; the answers to the questions below are
merged. The selected images are those of a single store, except for draws whose probability equals
their random number up to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric
from golddiff.store.training_set import TrainingSet
from golddiff.support import AnySupport, RuleSupport, Support, TiledSupport, concatenated
from golddiff.supports.index.drawing import WeightTotals
from golddiff.supports.index.search import NeighborSearch
from golddiff.system.numbers import F32, I64


@dataclass(frozen=True)
class WeightSums:
    """A question: the sums of weights over all images that a draw needs."""

    metric: Metric
    gain: float  # 1 / (2 sigma^2)

    def answer_shard(
        self, images: ImageStore, x: F32, within: Sequence[AnySupport]
    ) -> list[WeightTotals]:
        """See :class:`golddiff.store.training_set.Question`."""
        search = NeighborSearch(images, self.metric, x, within[0].rows, self.gain)
        return [search.summary(query) for query in range(len(x))]

    def merge(self, answers: Sequence[list[WeightTotals]]) -> list[WeightTotals]:
        """See :class:`golddiff.store.training_set.Question`."""
        merge = partial(WeightTotals.merge, gain=self.gain)
        return [reduce(merge, of_query) for of_query in zip(*answers, strict=True)]


@dataclass(frozen=True)
class WeightedDraw:
    """A question: about ``count`` images drawn for one query, given the sums over all shards."""

    metric: Metric
    gain: float

    def answer_shard(
        self, images: ImageStore, x: F32, within: Sequence[AnySupport],
        count: int, seeds: tuple[int, ...], total: WeightTotals,
    ) -> Support:  # fmt: skip
        """See :class:`golddiff.store.training_set.Question`."""
        search = NeighborSearch(images, self.metric, x, within[0].rows, self.gain)
        return search.drawn(0, count, seeds, total)

    def merge(self, answers: Sequence[Support], *more: Any) -> Support:
        """See :class:`golddiff.store.training_set.Question`."""
        return concatenated(answers)


class ShardedSearch:
    """Like :class:`NeighborSearch`, over a training set in shards."""

    def __init__(
        self, store: TrainingSet, metric: Metric, x: F32, within: RuleSupport, gain: float
    ) -> None:
        self.images = len(within)
        self._store, self._metric, self._x, self._within = store, metric, x, within
        self._draw = WeightedDraw(metric, gain)
        self._sums: list[WeightTotals] = store.answer(WeightSums(metric, gain), x, within)
        self._nearest: dict[tuple[int, int, int], I64] = {}

    def rings(self, query: int, spans: Mapping[int, tuple[int, int]]) -> dict[int, I64]:
        """See :class:`NeighborSearch`."""
        rings = {}
        for t, (first, stop) in spans.items():
            inner = self._nearest_rows(query, t, first) if first else np.empty(0, np.int64)
            outer = self._nearest_rows(query, t, stop)
            rings[t] = np.setdiff1d(outer, inner, assume_unique=True)
        return rings

    def summary(self, query: int) -> WeightTotals:
        """See :class:`NeighborSearch`."""
        return self._sums[query]

    def drawn(self, query: int, count: int, seeds: tuple[int, ...]) -> Support:
        """See :class:`NeighborSearch`."""
        x, sums = self._x[query : query + 1], self._sums[query]
        drawn: Support = self._store.answer(self._draw, x, self._within, count, seeds, sums)
        return drawn

    def _nearest_rows(self, query: int, location: int, count: int) -> I64:
        """Ascending rows of a location's nearest images, requested for all locations at once."""
        if count >= self.images:
            return self._within.rows
        if (query, location, count) not in self._nearest:
            (support,) = self._store.nearest(
                self._x[query : query + 1], count, self._metric, self._within
            )
            tiles = support.tiles if isinstance(support, TiledSupport) else [support]
            for t, tile in enumerate(tiles):
                self._nearest[query, t, count] = tile.rows
        return self._nearest[query, location, count]


Search = NeighborSearch | ShardedSearch
