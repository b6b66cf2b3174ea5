"""The distances of a stage, kept in a shard, and how many of them lie where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.cluster.keys import keys_of
from golddiff.system.parallel import in_order

UInt64 = NDArray[np.uint64]
Window = tuple[int, int, UInt64]  # the least and largest key it holds, and the keys


@dataclass
class Kept:
    """Distances of some images to every query and tile: P problems.

    Attributes:
        token: of the queries.
        rows: of each query, the local rows compared, ascending.
        tiles: of each query.
        distances: of each problem, query by query and tile by tile.
    """

    token: str
    rows: Sequence[NDArray[np.int64]]
    tiles: int
    distances: Sequence[NDArray[np.floating[Any]]]
    _windows: dict[int, Window] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        token: str,
        rows: Sequence[NDArray[np.int64]],
        tiles: int,
        distances: Sequence[NDArray[np.floating[Any]]],
    ) -> Kept:
        """The distances, each problem's in one piece of memory."""
        return cls(token, rows, tiles, [np.ascontiguousarray(d) for d in distances])

    def keys(self, problem: int) -> UInt64:
        """The distances of a problem as ordered integers."""
        return keys_of(self.distances[problem])

    def extent(self) -> tuple[UInt64, UInt64, list[int]]:
        """Least and largest key of each problem, and how many there are.

        Without any, the least is the largest number there is and the largest is 0.
        """
        low = np.full(len(self.distances), np.iinfo(np.uint64).max, np.uint64)
        high = np.zeros(len(self.distances), np.uint64)
        for problem, distances in enumerate(self.distances):
            if len(distances):
                ends = keys_of(np.array([distances.min(), distances.max()], distances.dtype))
                low[problem], high[problem] = ends
        return low, high, [len(d) for d in self.distances]

    def histogram(
        self, problems: NDArray[np.int64], low: UInt64, width: UInt64, bins: int
    ) -> NDArray[np.uint32]:
        """How many keys of each of some problems lie in each of ``bins`` bins.

        Args:
            problems: (p,) which.
            low: (p,) where the first bin starts.
            width: (p,) of a bin.
            bins: how many.
        """

        def count(i: int) -> NDArray[np.int64]:
            first, each = int(low[i]), int(width[i])
            keys = self._window(int(problems[i]), first, first + each * bins - 1)
            places = ((keys - np.uint64(first)) // np.uint64(each)).astype(np.int64)
            return np.bincount(places, minlength=bins)

        counts = np.empty((len(problems), bins), np.uint32)
        for i, found in enumerate(in_order(count, range(len(problems)))):
            counts[i] = found
        return counts

    def _window(self, problem: int, low: int, high: int) -> UInt64:
        """The keys of a problem from ``low`` to ``high``: each search looks among the last's."""
        kept = self._windows.get(problem)
        if kept is None or not (kept[0] <= low and high <= kept[1]):
            kept = (0, np.iinfo(np.uint64).max, self.keys(problem))
        keys = kept[2]
        inside = keys[(keys >= np.uint64(low)) & (keys <= np.uint64(min(high, 2**64 - 1)))]
        self._windows[problem] = (low, high, inside)
        return inside
