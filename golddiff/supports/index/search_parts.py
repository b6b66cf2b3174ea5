"""Which images matter to some queries, of a training set whose parts are asked apart.

What a part is asked goes through the questions that every training set answers; each part compares
its own images as a single store would. Rows decide, not parts: the images are the single store's,
but for draws whose chance is within rounding of the number that decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from golddiff.store.images import ImageStore
from golddiff.store.nearest import Metric
from golddiff.store.training_set import TrainingSet
from golddiff.support import DescribedSupport, Support, TiledSupport
from golddiff.supports.index.drawing import Sums
from golddiff.supports.index.search import NeighborSearch
from golddiff.system.numbers import F32, I64


@dataclass(frozen=True)
class Totals:
    """What one part sends to the others before images are drawn."""

    sums: list[Sums]  # of each query
    gain: float  # 1 / (2 sigma^2)

    def merge(self, other: Totals) -> Totals:
        """Of both parts' images."""
        pairs = zip(self.sums, other.sums, strict=True)
        return Totals([mine.merge(theirs, self.gain) for mine, theirs in pairs], self.gain)


@dataclass(frozen=True)
class WeightedDraw:
    """A draw as the parts of a training set are asked for it, in two rounds."""

    metric: Metric  # cheap distances
    gain: float  # 1 / (2 sigma^2)
    count: int = 0  # how many images, about
    seeds: tuple[int, ...] = ()  # of the random numbers that decide

    def summary(self, images: ImageStore, x: F32, within: Sequence[Support]) -> Totals:
        """The sums of a part's images."""
        search = NeighborSearch(images, self.metric, x, within[0].rows)
        return Totals([search.summary(q, self.gain) for q in range(len(x))], self.gain)

    def chosen(
        self, images: ImageStore, x: F32, within: Sequence[Support], total: Totals
    ) -> list[Support]:
        """A part's images that are drawn, by the sums of all parts."""
        search = NeighborSearch(images, self.metric, x, within[0].rows, images.first_row)
        return [
            search.drawn(query, self.count, self.gain, self.seeds, sums)
            for query, sums in enumerate(total.sums)
        ]


class SearchInParts:
    """The images of a training set in parts for queries (Q, D), as :class:`NeighborSearch`."""

    def __init__(
        self, store: TrainingSet, metric: Metric, x: F32, within: DescribedSupport
    ) -> None:
        self.images = len(within)
        self._store, self._metric, self._x, self._within = store, metric, x, within
        self._totals: Totals | None = None
        self._nearest: dict[tuple[int, int, int], I64] = {}

    def rings(self, query: int, spans: Mapping[int, tuple[int, int]]) -> dict[int, I64]:
        """See :class:`NeighborSearch`."""
        found = {}
        for t, (first, stop) in spans.items():
            inner = self._up_to(query, t, first) if first else np.empty(0, np.int64)
            found[t] = np.setdiff1d(self._up_to(query, t, stop), inner, assume_unique=True)
        return found

    def summary(self, query: int, gain: float) -> Sums:
        """All queries' are asked for at once."""
        if self._totals is None:
            draw = WeightedDraw(self._metric, gain)
            self._totals = self._store.summary(self._x, draw, self._within)
        return self._totals.sums[query]

    def drawn(self, query: int, count: int, gain: float, seeds: tuple[int, ...]) -> Support:
        """See :class:`NeighborSearch`."""
        draw = WeightedDraw(self._metric, gain, count, seeds)
        (support,) = self._store.draw(self._x[query : query + 1], draw, self._within)
        return support

    def _up_to(self, query: int, location: int, count: int) -> I64:
        """Ascending rows of a location's nearest images, asked for all locations at once."""
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


Search = NeighborSearch | SearchInParts
