"""One query's view of all images at once: by coordinates kept in memory, then by blocks of some.

See :mod:`golddiff.index.sweep` and :mod:`golddiff.index.screen`. The nearest are those by blocks,
of more that are nearest by some coordinates. Images are drawn in two steps, each unbiased given the
one before: candidates by coordinates, and of these by blocks.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.drawing import places_drawn
from golddiff.adaptive.looking import Look, Numbers, Stream
from golddiff.index.drawing import drawn_of, key_of, uniform
from golddiff.index.files import Index
from golddiff.index.search import checked
from golddiff.index.sweep import Sweep
from golddiff.kernels.aligned import empty
from golddiff.kernels.lowest import lowest
from golddiff.machine import seconds
from golddiff.noise import precision
from golddiff.support import Support

# Images compared by blocks, for each that is wanted, and the fewest. Noise hides much more of what
# coordinates tell than of what blocks do: draws need many candidates, which cost little.
COMPARED = {"nearest": (4, 1024), "screened": (4, 1024), "drawn": (16, 4096)}
ROUGH_ABOVE = 20.0  # noise level; a few coordinates draw about as well: what they lack is less
SURER = (0.93, 0.05, 0.02)  # as SHARES of a draw, where distances are known better


class SweepLooker:
    """Compares every image's coordinates; see :class:`golddiff.adaptive.looking.Looker`.

    Args:
        index: of the store.
        sweep: its coordinates.
        relevance: (1, D) shares R in [0, 1]; their mean stands for all.
        rows: ascending images of a class; None: all.
        numbers: coordinates compared.
    """

    tiles, together = 1, False

    def __init__(
        self,
        index: Index,
        sweep: Sweep,
        relevance: NDArray[np.float32],
        rows: NDArray[np.int64] | None,
        numbers: int,
    ) -> None:
        self.screen, self.sweep, self.numbers = index.screen, sweep, numbers
        checked(sweep.rows, index.store)
        self.share = float(relevance.mean())
        self.images = index.store.n if rows is None else len(rows)
        self.others: NDArray[np.bool_] | None = None
        if rows is not None:
            self.others = np.isin(sweep.rows, rows, invert=True)
        self.uniform = Numbers(len(sweep.rows))
        self._room: list[NDArray[np.float32]] = []

    def look(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None, without: int | None = None
    ) -> Look:
        """See :class:`golddiff.adaptive.looking.Looker`."""
        (seen,) = self._looks(x[None], without)
        return seen

    def looks(self, x: NDArray[np.float32]) -> Iterable[Look]:
        """See :class:`golddiff.adaptive.looking.Looker`; coordinates are read once for all."""
        return self._looks(x, None)

    def _looks(self, x: NDArray[np.float32], without: int | None) -> list[_SweepLook]:
        distances = _Distances(self._room, len(x), self.sweep.size)
        seen = self.sweep.distances(x, self.numbers, distances.array)
        if self.others is not None:
            seen[:, self.others] = np.inf
        if without is not None:
            seen[:, self.sweep.rows == without] = np.inf
        counted = self.images - (without is not None)
        return [
            _SweepLook(self, query, line, counted, distances)
            for query, line in zip(x, seen, strict=True)
        ]

    def work(self, name: str, k: int) -> float:
        """See :class:`golddiff.adaptive.looking.Looker`."""
        choice = seconds("drawn" if name == "drawn" else "nearest")
        by_coordinates = len(self.sweep.rows) * (self.numbers * seconds("swept") + choice)
        return by_coordinates + self.screen.work(self.compared(name, k))

    def counted(self, name: str, k: int) -> tuple[int, int]:
        """Two operations a coordinate and a block's number; a byte of each."""
        compared = self.compared(name, k) * self.screen.numbers
        numbers = len(self.sweep.rows) * self.numbers + compared
        return 2 * numbers, numbers + 4 * len(self.sweep.rows)

    def compared(self, name: str, k: int) -> int:
        """How many images are compared by blocks, to choose k."""
        each, fewest = COMPARED[name]
        return min(self.images, max(fewest, each * k))


class _Distances:
    """Some queries' distances, in memory that is used again once nobody holds them.

    Memory that is new takes as long to come by as the distances to make.
    """

    def __init__(self, room: list[NDArray[np.float32]], queries: int, size: int) -> None:
        whole = room.pop() if room else empty((0, size))
        if len(whole) < queries:
            whole = empty((queries, size))
        self.array = whole[:queries]
        weakref.finalize(self, room.append, whole)


class _SweepLook:
    def __init__(
        self,
        looker: SweepLooker,
        x: NDArray[np.float32],
        distances: NDArray[np.float32],
        images: int,
        held: _Distances,
    ) -> None:
        self._looker, self._x, self._images = looker, x, images
        self._distances, self._held = distances, held

    def nearest(self, k: int, of: int | None = None) -> list[Support]:
        rows = self._next("nearest", max(k, of or 0))
        near = self._looker.screen.compare(self._x, rows).near
        return [Support(rows[lowest(near, k)])]

    def screened(self, k: int, sigma: float) -> list[Support]:
        return [Support(self._looker.screen.nearest(self._x, sigma, self._next("screened", k), k))]

    def drawn(self, k: int, sigma: float, stream: Stream) -> list[Support]:
        looker = self._looker
        gain = looker.share * precision(sigma)
        rows, p = self._candidates(looker.compared("drawn", k), gain, stream)
        distances = looker.screen.compare(self._x, rows).near
        return [drawn_of(rows, distances, p, k, gain, uniform(key_of(stream), rows), SURER)]

    def _next(self, name: str, k: int) -> NDArray[np.int64]:
        """The nearest by coordinates, ascending, that are compared by blocks."""
        count = min(self._looker.compared(name, k), self._images)
        rows: NDArray[np.int64] = np.sort(self._looker.sweep.rows[lowest(self._distances, count)])
        return rows

    def _candidates(
        self, count: int, gain: float, stream: Stream
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """About ``count`` images by coordinates, ascending, and their probabilities."""
        looker, distances = self._looker, self._distances
        if count >= self._images:
            places = np.flatnonzero(np.isfinite(distances))
            chances = np.ones(len(places))
        else:
            numbers = looker.uniform.of(stream)
            places, found = places_drawn(distances, self._images, count, gain, numbers)
            counts = np.isfinite(distances[places])
            places, chances = places[counts], found[counts].astype(np.float64)
            if len(places) == 0:
                places, chances = np.array([np.argmin(distances)]), np.ones(1)
        rows = looker.sweep.rows[places]
        order = np.argsort(rows)
        return rows[order], chances[order]
