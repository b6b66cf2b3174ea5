"""Each tile's images among all, the nearest or drawn by weight, by blocks of pixels kept in memory.

What :mod:`golddiff.index.screen` compares finely, of all images, for all tiles at once: the squared
difference of an image and the query in every block is made once, and a tile's is their sum, each
times the share of the tile's masks that hold the block. So a tile takes a number a block and image,
64 at 3 x 64 x 64, however wide its masks are. Clusters (:class:`~golddiff.adaptive.looking.
IndexLooker`) lose more the wider they are: what is next to a query as a whole is not what is next
to it where a tile looks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.drawing import mixture_of
from golddiff.adaptive.looking import Look, Numbers, Stream
from golddiff.index.screen import Screen
from golddiff.kernels.lowest import lowest, up_to
from golddiff.kernels.weights import TEMPERATURE, taken, tempered_weights
from golddiff.machine import seconds
from golddiff.noise import precision
from golddiff.support import Support
from golddiff.system.parallel import in_order

IMAGES_AT_ONCE = 16_384  # a task's; fewer take longer to hand out than to compare
SAMPLE = 16_384  # images that tell below what distance about k of all lie
SLACK = 6.0  # standard deviations of that guess

Found = tuple[NDArray[np.int64], NDArray[np.float32]]  # images, and a number of each
Sums = tuple[float, float, float]  # least distance; sums of weights and of tempered ones


class TileSweepLooker:
    """Compares all images' blocks; see :class:`golddiff.adaptive.looking.Looker`.

    Args:
        screen: the index's.
        relevance: (T, D) shares R in [0, 1].
        rows: ascending images of a class; None: all.
    """

    together = False

    def __init__(
        self, screen: Screen, relevance: NDArray[np.float32], rows: NDArray[np.int64] | None
    ) -> None:
        self.screen = screen
        self.shares = screen.shares(relevance)
        self.tiles = len(relevance)
        self.images = screen.images if rows is None else len(rows)
        self.member: NDArray[np.bool_] | None = None
        if rows is not None:
            self.member = np.zeros(screen.images, np.bool_)
            self.member[rows] = True
        self.uniform = Numbers(screen.images)

    def look(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None, without: int | None = None
    ) -> Look:
        """See :class:`golddiff.adaptive.looking.Looker`."""
        return _TileSweepLook(self, x, None if tiles is None else list(tiles), without)

    def looks(self, x: NDArray[np.float32]) -> Iterable[Look]:
        """See :class:`golddiff.adaptive.looking.Looker`."""
        return map(self.look, x)

    def work(self, name: str, k: int) -> float:
        """See :class:`golddiff.adaptive.looking.Looker`."""
        blocks = self.shares.shape[1]
        of_image = (self.screen.numbers + self.tiles * blocks) * seconds("distance")
        each = of_image + self.tiles * seconds(name if name == "drawn" else "nearest")
        return float(_passes(name) * self.screen.images * each)

    def counted(self, name: str, k: int) -> tuple[int, int]:
        """Three operations a number, two a tile and block; a byte a number. Twice for draws."""
        numbers, blocks = self.screen.numbers, self.shares.shape[1]
        images = _passes(name) * self.screen.images
        return images * (3 * numbers + 2 * self.tiles * blocks), images * numbers


class _TileSweepLook:
    def __init__(
        self,
        looker: TileSweepLooker,
        x: NDArray[np.float32],
        tiles: list[int] | None,
        without: int | None,
    ) -> None:
        self._looker, self._without = looker, without
        self._goal = looker.screen.project(x)
        self._shares = looker.shares if tiles is None else looker.shares[tiles]
        self._found: list[Found] = []  # of each tile, for the most that were asked for
        self._most = 0
        self._sums: dict[float, list[Sums]] = {}

    def nearest(self, k: int, of: int | None = None) -> list[Support]:
        if max(k, of or 0) > self._most:
            self._most = max(k, of or 0)
            self._found = self._look(self._most)
        return [Support(rows[lowest(distances, k)]) for rows, distances in self._found]

    def screened(self, k: int, sigma: float) -> list[Support]:
        return self.nearest(k)

    def drawn(self, k: int, sigma: float, stream: Stream) -> list[Support]:
        gain = precision(sigma)
        if gain not in self._sums:
            self._sums = {gain: self._sums_of_weights(gain)}
        sums, numbers = self._sums[gain], self._looker.uniform.of(stream)
        parts = list(in_order(lambda i: self._draw(i, k, gain, sums, numbers), self._starts()))
        made = [_joined(tile) for tile in zip(*parts, strict=True)]
        drawn = [Support(rows, -np.log(p.astype(np.float64))) for rows, p in made]
        if all(map(len, drawn)):
            return drawn
        return [
            some if len(some) else one for some, one in zip(drawn, self.nearest(1), strict=True)
        ]

    def _sums_of_weights(self, gain: float) -> list[Sums]:
        """Of each tile over all images, relative to its nearest one."""
        parts = list(in_order(lambda start: self._weigh(start, gain), self._starts()))
        return [_added(tile, gain) for tile in zip(*parts, strict=True)]

    def _weigh(self, start: int, gain: float) -> list[Sums]:
        sums = []
        for line in self._distances(start):
            best = float(line.min())
            exact, tempered = 0.0, 0.0
            if np.isfinite(best):
                _, exact, tempered = tempered_weights(line, best, gain)
            sums.append((best, exact, tempered))
        return sums

    def _draw(
        self, start: int, k: int, gain: float, sums: list[Sums], numbers: NDArray[np.float32]
    ) -> list[Found]:
        """Some images' draws for each tile, and their probabilities.

        Their factor is k, not the one that makes k of them: for that it would have to be known
        which images are sure.
        """
        distances, found = self._distances(start), []
        uniform = numbers[start : start + distances.shape[1]]
        for line, (best, exact, tempered_sum) in zip(distances, sums, strict=True):
            tempered, *_ = tempered_weights(line, best, gain)
            mixture = mixture_of(exact, tempered_sum, self._looker.images)
            places, p = taken(tempered, mixture, k, uniform, k * len(line) // len(numbers))
            counts = np.isfinite(line[places])
            found.append((start + places[counts], p[counts]))
        return found

    def _look(self, k: int) -> list[Found]:
        """Each tile's images, ascending, of which the k nearest are some, and their distances."""
        enough = min(k, self._looker.images - (self._without is not None))
        limits = self._limits(k)
        found = self._all_below(limits)
        short = np.array([len(rows) < enough for rows, _ in found])
        if short.any():  # all, rather than too few
            found = self._all_below(np.where(short, np.float32(np.inf), limits))
        return found

    def _all_below(self, limits: NDArray[np.float32]) -> list[Found]:
        parts = list(in_order(lambda start: self._below(start, limits), self._starts()))
        return [_joined(tile) for tile in zip(*parts, strict=True)]

    def _starts(self) -> range:
        return range(0, self._looker.screen.images, IMAGES_AT_ONCE)

    def _limits(self, k: int) -> NDArray[np.float32]:
        """Of each tile the distance below which k images lie, and likely not many more."""
        images = self._looker.screen.images
        if 4 * k >= images:
            return np.full(len(self._shares), np.inf, np.float32)
        starts = np.linspace(0, images, SAMPLE // 64, endpoint=False).astype(np.int64)
        size = max(1, min(64, images // len(starts)))
        seen = [self._distances(start, size) for start in starts]
        sample = np.concatenate(seen, axis=1)
        counted = int(np.isfinite(sample[0]).sum())
        expected = k * counted / self._looker.images
        rank = int(expected + SLACK * np.sqrt(expected + 1))
        if rank >= counted:
            return np.full(len(self._shares), np.inf, np.float32)
        limits: NDArray[np.float32] = np.partition(sample, rank, axis=1)[:, rank]
        return limits

    def _below(self, start: int, limits: NDArray[np.float32]) -> list[Found]:
        distances, found = self._distances(start), []
        for line, limit in zip(distances, limits, strict=True):
            places = up_to(line, limit) if np.isfinite(limit) else np.flatnonzero(line < np.inf)
            found.append((start + places, line[places]))
        return found

    def _distances(self, start: int, most: int | None = None) -> NDArray[np.float32]:
        """Of some images (T, count); infinite of those that do not count."""
        count = min(most or IMAGES_AT_ONCE, self._looker.screen.images - start)
        energies = self._looker.screen.energies(self._goal, start, count)
        distances: NDArray[np.float32] = (self._shares @ energies)[:, :count]
        member = self._looker.member
        if member is not None:
            distances[:, ~member[start : start + count]] = np.inf
        if self._without is not None and start <= self._without < start + count:
            distances[:, self._without - start] = np.inf
        return np.ascontiguousarray(distances)


def _passes(name: str) -> int:
    """Over all images: draws take the sums of weights first."""
    return 2 if name == "drawn" else 1


def _joined(parts: Sequence[Found]) -> Found:
    return np.concatenate([rows for rows, _ in parts]), np.concatenate([n for _, n in parts])


def _added(parts: Sequence[Sums], gain: float) -> Sums:
    best = min(least for least, _, _ in parts)
    exact = sum(e * math.exp(-gain * (least - best)) for least, e, _ in parts if e)
    tempered = sum(t * math.exp(-gain * (least - best) / TEMPERATURE) for least, _, t in parts if t)
    return best, exact, tempered
