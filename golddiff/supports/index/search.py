"""Which images matter to some queries: the nearest, ring after ring, or about k drawn by weight.

Two questions, the nearest and a draw, are all that a schedule asks. Of one store distances are made
once for all queries and locations, and supports of any size are then chosen from them
(:class:`NeighborSearch`); a training set in parts is asked part by part
(:mod:`golddiff.supports.index.search_parts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import numpy as np
import torch

from golddiff.kernels.lowest import lowest_first
from golddiff.kernels.rows import squared_distances
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric
from golddiff.support import Support
from golddiff.supports.index.drawing import Sums, drawn, proposal, summary, uniform
from golddiff.system.numbers import F32, I64
from golddiff.system.parallel import map_ordered

LOOKED_AHEAD = 4  # times as many images as were asked for are put in order at once
COMPARED = 64  # images that tell what a metric's distances lack


class NeighborSearch:
    """The images of one store as some queries see them, at T locations each.

    Args:
        store: the training set.
        metric: cheap distances, for each of T locations.
        x: (Q, D) queries.
        rows: (n,) ascending images to choose from.
        gain: 1 / (2 sigma^2), by which distances become weights.
        further: (n,) distance that each image is taken to be further away, by its log weight.
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
        # As the whole training set counts them, of which the store may be a part.
        self.rows, self.images = rows + store.first_row, len(rows)
        self._numbers: dict[tuple[int, ...], F32] = {}
        self._store, self._x, self._here, self._gain = store, x, rows, gain
        self._distances = metric.distances(store, x, rows)
        if further is not None:
            self._distances += further
        self._ordered: dict[tuple[int, int], I64] = {}
        self._sums: dict[int, Sums] = {}
        self._shares: dict[int, F32] = {}

    def rings(self, query: int, spans: Mapping[int, tuple[int, int]]) -> dict[int, I64]:
        """Ascending rows of some locations' images of rank ``first`` to before ``stop``.

        The nearest has rank 0; of equally near images the one with the lower row comes first.
        ``spans`` are (first, stop) by location.
        """

        def one(location: int) -> I64:
            first, stop = spans[location]
            return np.sort(self.rows[self._in_order(query, location, stop)[first:stop]])

        return dict(zip(spans, map_ordered(one, list(spans)), strict=True))

    def summary(self, query: int) -> Sums:
        """The sums of the images' weights by distance; found once."""
        if query not in self._sums:
            self._sums[query] = summary(self._distances[query], self._gain)
        return self._sums[query]

    def drawn(
        self, query: int, count: int, seeds: tuple[int, ...], total: Sums | None = None
    ) -> Support:
        """About ``count`` images by weight; ``seeds`` decide.

        ``total`` is the sums of all parts, where this is one of them.
        """
        if seeds not in self._numbers:
            self._numbers[seeds] = uniform(seeds, self.rows)
        if query not in self._shares:
            total = self.summary(query) if total is None else total
            self._shares[query] = proposal(self._distances[query], self._gain, total)
        return drawn(self._shares[query], self.rows, count, self._numbers[seeds])

    def overlooked(self, query: int, count: int, nearest: float) -> float:
        """About how many images beyond the first ``count`` are nearer than ``nearest``.

        That is a squared distance of all values, of which the metric's hold a part. What they lack
        is taken to be normal, with the mean and spread that it has of 64 images of all over the
        set.
        """
        mean, spread = self._lacking[query]
        within = self._distances[query, 0] - np.float32(nearest - mean)
        within[self._in_order(query, 0, count)[:count]] = np.inf
        some = within[within < 6 * spread].astype(np.float64)
        return float(torch.special.ndtr(torch.from_numpy(-some / spread)).sum())

    @cached_property
    def _lacking(self) -> list[tuple[float, float]]:
        """Mean and spread of what distances lack of those of all values, for each query."""
        some = np.linspace(0, self.images - 1, COMPARED).astype(np.int64)
        squares = squared_distances(self._store.stored, self._here[some], self._x)
        lacking = squares - self._distances[:, 0, some]
        spreads = lacking.std(axis=1) + np.finfo(np.float32).tiny
        return list(zip(lacking.mean(axis=1).tolist(), spreads.tolist(), strict=True))

    def _in_order(self, query: int, location: int, stop: int) -> I64:
        """At least the first ``stop`` places, nearest first."""
        known = self._ordered.get((query, location))
        if known is None or len(known) < min(stop, len(self.rows)):
            known = lowest_first(self._distances[query, location], LOOKED_AHEAD * stop)
            self._ordered[query, location] = known
        return known
