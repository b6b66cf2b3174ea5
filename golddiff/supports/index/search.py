"""Search for the images that a query needs: its nearest, in rings, or a draw by weight.

:class:`NeighborSearch` computes a store's distances once and selects supports of any size by them.
:class:`ShardedSearch` selects the same images over shards, except for draws whose probability
equals their random number up to rounding: each shard compares its own images as a single store
would, and its answers to two questions are merged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial, reduce
from typing import Any

import numpy as np
import torch

from golddiff.kernels.lowest import lowest
from golddiff.kernels.rows import squared_distances
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric
from golddiff.store.training_set import TrainingSet
from golddiff.support import AnySupport, Support, TiledSupport, concatenated
from golddiff.supports.index.drawing import WeightTotals, drawn, proposal, summary, uniform
from golddiff.system.numbers import F32, I64
from golddiff.system.parallel import map_ordered

SORT_AHEAD = 4  # ratio of images sorted at once to images requested
RESIDUAL_SAMPLE = 64  # images from which the error of a metric's distances is estimated


class NeighborSearch:
    """The images of one store ranked for several queries, at T locations each.

    Args:
        store: the training set.
        metric: the distance, one for each of T locations.
        x: (Q, D) queries.
        rows: (n,) ascending rows of the candidates.
        gain: 1 / (2 sigma^2), which turns distances into weights.
        further: (n,) added to each image's distances, to account for its log weight.
    """

    def __init__(
        self,
        store: ImageStore,
        metric: Metric,
        x: F32,
        rows: I64,
        gain: float,
        further: F32 | None = None,
    ) -> None:
        # Rows of the whole training set, of which the store may be a shard.
        self.rows, self.images = rows + store.first_row, len(rows)
        self._numbers: dict[tuple[int, ...], F32] = {}
        self._store, self._x, self._store_rows, self._gain = store, x, rows, gain
        self._distances = metric.distances(store, x, rows)
        if further is not None:
            self._distances += further
        self._ordered: dict[tuple[int, int], I64] = {}
        self._sums: dict[int, WeightTotals] = {}
        self._shares: dict[int, F32] = {}

    def rings(self, query: int, spans: Mapping[int, tuple[int, int]]) -> dict[int, I64]:
        """Ascending rows of each location's images of rank ``first`` to ``stop`` - 1.

        ``spans`` maps locations to (first, stop). Rank 0 is the nearest; ties go to the lower row.
        """

        def ring(location: int) -> I64:
            first, stop = spans[location]
            return np.sort(self.rows[self._nearest_first(query, location, stop)[first:stop]])

        return dict(zip(spans, map_ordered(ring, list(spans)), strict=True))

    def summary(self, query: int) -> WeightTotals:
        """The sums of the images' weights by distance; cached."""
        if query not in self._sums:
            self._sums[query] = summary(self._distances[query], self._gain)
        return self._sums[query]

    def drawn(
        self, query: int, count: int, seeds: tuple[int, ...], total: WeightTotals | None = None
    ) -> Support:
        """About ``count`` images drawn by weight, with the random numbers of ``seeds``.

        ``total`` holds the merged sums of all shards, if the store is one of them.
        """
        if seeds not in self._numbers:
            self._numbers[seeds] = uniform(seeds, self.rows)
        if query not in self._shares:
            total = self.summary(query) if total is None else total
            self._shares[query] = proposal(self._distances[query], self._gain, total)
        return drawn(self._shares[query], self.rows, count, self._numbers[seeds])

    def overlooked(self, query: int, rows: I64, nearest: float) -> float:
        """Expected number of images, besides those of ``rows``, that are nearer than ``nearest``.

        ``nearest`` is a squared distance over all values. The squared distance of an image minus
        the metric's is modelled as normal, with mean and spread estimated from 64 images.
        """
        mean, spread = self._residuals[query]
        margins = self._distances[query, 0] - np.float32(nearest - mean)
        margins[np.searchsorted(self.rows, rows)] = np.inf
        reachable = margins[margins < 6 * spread].astype(np.float64)
        return float(torch.special.ndtr(torch.from_numpy(-reachable / spread)).sum())

    @cached_property
    def _residuals(self) -> list[tuple[float, float]]:
        """For each query, mean and spread of the squared distance minus the metric's distance."""
        sample = np.linspace(0, self.images - 1, RESIDUAL_SAMPLE).astype(np.int64)
        squares = squared_distances(self._store.stored, self._store_rows[sample], self._x)
        residuals = squares - self._distances[:, 0, sample]
        spreads = residuals.std(axis=1) + np.finfo(np.float32).tiny
        return list(zip(residuals.mean(axis=1).tolist(), spreads.tolist(), strict=True))

    def _nearest_first(self, query: int, location: int, stop: int) -> I64:
        """Positions of at least the ``stop`` nearest images, nearest first."""
        positions = self._ordered.get((query, location))
        if positions is None or len(positions) < min(stop, len(self.rows)):
            distances = self._distances[query, location]
            positions = lowest(distances, SORT_AHEAD * stop)
            positions = positions[np.argsort(distances[positions], kind="stable")]
            self._ordered[query, location] = positions
        return positions


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
        self, store: TrainingSet, metric: Metric, x: F32, within: AnySupport, gain: float
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
        return self._store.answer(self._draw, x, self._within, count, seeds, sums)

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
