"""Search for the images that a query needs: its nearest, in rings, or a draw by weight.

:class:`NeighborSearch` computes a store's distances once and selects supports of any size by them;
:mod:`golddiff.supports.index.sharded_search` does the same over shards.
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

    def overlooked(self, query: int, count: int, nearest: float) -> float:
        """Expected number of images, beyond the first ``count``, that are nearer than ``nearest``.

        ``nearest`` is a squared distance over all values. The squared distance of an image minus
        the metric's is modelled as normal, with mean and spread estimated from 64 images.
        """
        mean, spread = self._residuals[query]
        margins = self._distances[query, 0] - np.float32(nearest - mean)
        margins[self._nearest_first(query, 0, count)[:count]] = np.inf
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
            positions = lowest_first(self._distances[query, location], SORT_AHEAD * stop)
            self._ordered[query, location] = positions
        return positions
