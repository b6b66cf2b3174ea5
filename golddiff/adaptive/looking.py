"""One query's view of the images, from which supports of any size are chosen.

Four ways to look: at every image (:class:`LinearLooker`, whose cost grows with N), through the
index's clusters next to the query (:class:`IndexLooker`), and at what is kept in memory of all
images: coordinates of whole ones (:class:`golddiff.adaptive.sweeping.SweepLooker`), and for tiles
their blocks (:class:`golddiff.adaptive.tilesweep.TileSweepLooker`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.blocks import BlockRanking
from golddiff.adaptive.comparing import Comparing
from golddiff.adaptive.drawing import draw
from golddiff.adaptive.ranking import Ranking
from golddiff.index.drawing import candidates, key_of
from golddiff.index.drawing import draw as draw_through
from golddiff.index.files import Index
from golddiff.index.search import Near, Sight, checked, sight_of
from golddiff.kernels.lowest import lowest
from golddiff.kernels.mask_tiles import Side
from golddiff.machine import seconds
from golddiff.support import Support
from golddiff.system.parallel import in_order

MEMBERS_A_K = 16  # images that the index compares, for each that is kept
FEWEST_MEMBERS = 8192
SCREENED = 4  # images compared more finely, for each that is kept
FEWEST_SCREENED = 8192
MEMBERS_SCREENED = 8  # images that the index compares, for each of those
HELD = 3e7  # bytes of queries' distances to all images that are made at once
GATHERED = 4.0  # times what choosing an image of a row takes, for one of many clusters

Stream = tuple[int, ...]
T = TypeVar("T")
U = TypeVar("U")


class Look(Protocol):
    """What some locations see of the images for one query."""

    def nearest(self, k: int, of: int | None = None) -> list[Support]:
        """Each location's k nearest images, of those that are compared for as many or ``of``."""
        ...

    def screened(self, k: int, sigma: float) -> list[Support]:
        """At most k, by finer distances of those that are nearest by coarse ones.

        Those alone that may matter: of a query with few near images, few.
        """
        ...

    def drawn(self, k: int, sigma: float, stream: Stream) -> list[Support]:
        """About k images drawn by weight for each location; the stream's random numbers decide."""
        ...


def chosen(look: Look, name: str, k: int, sigma: float, stream: Stream) -> list[Support]:
    """Each location's images by a kind's name, "drawn", "nearest" or "screened"."""
    if name == "drawn":
        return look.drawn(k, sigma, stream)
    return look.screened(k, sigma) if name == "screened" else look.nearest(k)


def few_and_rest(look: Look, few: int, k: int) -> tuple[list[Support], list[Support]]:
    """Each location's ``few`` nearest images, and the other nearest ones up to k."""
    first = look.nearest(few, of=k)
    both = zip(look.nearest(k), first, strict=True)
    return first, [Support(np.setdiff1d(all_.rows, some.rows, True)) for all_, some in both]


class Looker(Protocol):
    """How locations look at the images, at one noise level.

    Attributes:
        tiles: how many locations there are.
        images: how many images.
        together: whether looks that are taken before one is asked cost one round for all.
    """

    tiles: int
    images: int
    together: bool

    def look(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None, without: int | None = None
    ) -> Look:
        """What some locations (None: all) see for a query (D,), but for one row of the store."""
        ...

    def looks(self, x: NDArray[np.float32]) -> Iterable[Look]:
        """What all locations see for each of some queries (b, D), one after the other."""
        ...

    def work(self, name: str, k: int) -> float:
        """Predicted seconds of choosing k images for each location, for one query."""
        ...

    def counted(self, name: str, k: int) -> tuple[int, int]:
        """(arithmetic operations, bytes read) of comparing images with one query."""
        ...


class Numbers:
    """A uniform random number for each of some images; those of the last stream are kept.

    Args:
        images: how many.
    """

    def __init__(self, images: int) -> None:
        self._images = images
        self._kept: tuple[Stream, NDArray[np.float32]] | None = None

    def of(self, stream: Stream) -> NDArray[np.float32]:
        """The numbers (images,) of a stream."""
        kept = self._kept
        if kept is None or kept[0] != stream:
            numbers = np.random.default_rng(stream).random(self._images, np.float32)
            self._kept = kept = (stream, numbers)
        return kept[1]


def linear_work(name: str, tiles: int, images: int, comparing: Comparing) -> float:
    """Predicted seconds of comparing every image and choosing some, for one query."""
    return comparing.seconds(tiles, images) + tiles * images * seconds(name)


class LinearLooker:
    """Compares every image; see :class:`Looker`."""

    together = False

    def __init__(self, ranking: Ranking | BlockRanking) -> None:
        self.ranking = ranking
        self.tiles, self.images = ranking.tiles, len(ranking.rows)
        self.uniform = Numbers(self.images)

    def look(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None, without: int | None = None
    ) -> Look:
        """See :class:`Looker`."""
        distances, rows = self.ranking.distances(x[None], tiles)[0], self.ranking.rows
        if without is not None:
            kept = rows != without
            # Chosen columns of an array lie column by column; the draws read rows.
            seen = np.ascontiguousarray(distances[:, kept])
            return _LinearLook(self, seen, rows[kept], kept)
        return _LinearLook(self, distances, rows, None)

    def looks(self, x: NDArray[np.float32]) -> Iterable[Look]:
        """See :class:`Looker`; what is read of the images is read once for several queries."""
        together = max(1, int(HELD / (4 * self.tiles * self.images)))
        for start in range(0, len(x), together):
            for distances in self.ranking.distances(x[start : start + together]):
                yield _LinearLook(self, distances, self.ranking.rows, None)

    def work(self, name: str, k: int) -> float:
        """See :class:`Looker`."""
        return linear_work(name, self.tiles, self.images, self.ranking.comparing)

    def counted(self, name: str, k: int) -> tuple[int, int]:
        """See :class:`Looker`."""
        return self.ranking.comparing.counted(self.tiles, self.images)


class _LinearLook:
    def __init__(
        self,
        looker: LinearLooker,
        distances: NDArray[np.float32],
        rows: NDArray[np.int64],
        kept: NDArray[np.bool_] | None,
    ) -> None:
        self._looker, self._distances, self._rows, self._kept = looker, distances, rows, kept

    def nearest(self, k: int, of: int | None = None) -> list[Support]:
        return _each(lambda tile: Support(self._rows[lowest(tile, k)]), list(self._distances))

    def screened(self, k: int, sigma: float) -> list[Support]:
        return self.nearest(k)  # every image is compared by all that there is

    def drawn(self, k: int, sigma: float, stream: Stream) -> list[Support]:
        numbers = self._looker.uniform.of(stream)
        if self._kept is not None:
            numbers = numbers[self._kept]
        return _each(lambda tile: draw(tile, self._rows, k, sigma, numbers), list(self._distances))


class IndexLooker:
    """Opens the clusters next to a query; see :class:`Looker`.

    Args:
        index: of the store.
        side: of the tiles, None for the whole image.
        relevance: (T, D) shares R in [0, 1].
        rows: ascending images of a class; None: all.
    """

    together = False

    def __init__(
        self,
        index: Index,
        side: Side | None,
        relevance: NDArray[np.float32],
        rows: NDArray[np.int64] | None,
    ) -> None:
        self._store, self.screen = index.store, index.screen
        self.tiles = len(relevance)
        self.images = index.store.n if rows is None else len(rows)
        self._share = self.images / index.store.n
        self._member: NDArray[np.bool_] | None = None
        if rows is not None:
            self._member = np.zeros(index.store.n, np.bool_)
            self._member[rows] = True
        self._sights = _each(lambda t: sight_of(index, side, t, relevance[t]), range(self.tiles))

    def look(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None, without: int | None = None
    ) -> Look:
        """See :class:`Looker`."""
        return _IndexLook(self, x, range(self.tiles) if tiles is None else tiles, without)

    def looks(self, x: NDArray[np.float32]) -> Iterable[Look]:
        """See :class:`Looker`."""
        return map(self.look, x)

    def work(self, name: str, k: int) -> float:
        """See :class:`Looker`; the small matrix takes as long as as many differences."""
        members = self.compared(name, k)
        choice = GATHERED * seconds("drawn" if name == "drawn" else "nearest")
        total = 0.0
        for sight in self._sights:
            compared = seconds("distance") * sight.numbers + choice
            read = seconds("byte") * sight.bytes
            total += (sight.clusters + members) * compared + members * read
        if name == "screened":
            total += self.screen.work(self.screened(k))
        return total

    def counted(self, name: str, k: int) -> tuple[int, int]:
        """A product with an r x r matrix and a square for each image compared; its coordinates."""
        members = self.compared(name, k)
        operations = sum(2 * s.numbers * (s.clusters + members) for s in self._sights)
        read = sum(4 * s.clusters * s.coordinates + members * s.bytes for s in self._sights)
        if name == "screened":
            numbers = self.screened(k) * self.screen.numbers
            operations, read = operations + 2 * numbers, read + numbers
        return operations, read

    def compared(self, name: str, k: int) -> int:
        """How many images are compared, to choose k."""
        if name == "screened":
            return self.members(self.screened(k), MEMBERS_SCREENED)
        return self.members(k) + (candidates(k) if name == "drawn" else 0)

    def screened(self, k: int) -> int:
        """How many images are compared more finely, to choose k."""
        return min(self.images, max(FEWEST_SCREENED, SCREENED * k))

    def members(self, k: int, each: int = MEMBERS_A_K) -> int:
        """How many images are compared for k that are kept."""
        return min(self._store.n, int(max(each * k, FEWEST_MEMBERS) / self._share))

    def sight(self, t: int) -> Sight:
        """How location t compares."""
        return self._sights[t]

    def near(
        self,
        t: int,
        x: NDArray[np.float32],
        k: int,
        without: int | None,
        each: int = MEMBERS_A_K,
    ) -> Near:
        """What location t sees, of so many images for each of k."""
        members = self.members(k, each)
        enough = min(k, self.images - 1)
        while True:
            near = self._sights[t].look(x, members)
            keep = self.counts(near.rows, without)
            if np.count_nonzero(keep) >= enough or members >= self._store.n:
                return replace(near, rows=near.rows[keep], distances=near.distances[keep])
            members *= 4

    def counts(self, rows: NDArray[np.int64], without: int | None) -> NDArray[np.bool_]:
        """Which of the rows may be chosen."""
        keep = np.ones(len(rows), np.bool_)
        if self._member is not None:
            keep = self._member[checked(rows, self._store)]
        elif len(rows):
            checked(rows, self._store)
        return keep if without is None else keep & (rows != without)


class _IndexLook:
    def __init__(
        self,
        looker: IndexLooker,
        x: NDArray[np.float32],
        tiles: Sequence[int],
        without: int | None,
    ) -> None:
        self._looker, self._x, self._tiles, self._without = looker, x, tiles, without
        self._seen: tuple[int, dict[int, Near]] = 0, {}  # of how many members, by location

    def _near(self, t: int, k: int) -> Near:
        """What location t sees; looked for once for all k that take as many members."""
        near = self._seen[1].get(t)
        if near is None or len(near.rows) < min(k, self._looker.images - 1):
            near = self._looker.near(t, self._x, k, self._without)
            self._seen[1][t] = near
        return near

    def nearest(self, k: int, of: int | None = None) -> list[Support]:
        members = self._looker.members(max(k, of or 0))
        if members != self._seen[0]:
            self._seen = members, {}

        def one(t: int) -> Support:
            near = self._near(t, max(k, of or 0))
            return Support(np.sort(near.rows[lowest(near.distances, k)]))

        return _each(one, self._tiles)

    def screened(self, k: int, sigma: float) -> list[Support]:
        looker, x = self._looker, self._x
        count = looker.screened(k)
        supports = []
        for t in self._tiles:
            near = looker.near(t, x, count, self._without, MEMBERS_SCREENED)
            rows = np.sort(near.rows[lowest(near.distances, count)])
            supports.append(Support(looker.screen.nearest(x, sigma, rows, k)))
        return supports

    def drawn(self, k: int, sigma: float, stream: Stream) -> list[Support]:
        looker = self._looker

        def one(t: int) -> Support:
            near = looker.near(t, self._x, k, self._without)
            key = key_of((*stream, t))
            counts = partial(looker.counts, without=self._without)
            return draw_through(looker.sight(t), near, counts, k, sigma, key)

        return _each(one, self._tiles)


def _each(function: Callable[[T], U], items: Sequence[T]) -> list[U]:
    return list(in_order(function, items))
