"""How queries look at the images of all shards: the nearest, and draws by weight, from a few sums.

Each shard ranks its own images. The nearest of all are found as in
:mod:`golddiff.cluster.search`. For a draw by weight the driver needs, over all shards, the least
distance, the sums of the weights and the factor c that gives the number wanted; each is a number a
shard, asked for in turn. Every shard then draws its own images, with its part of one stream of
random numbers: images and weights are the single store's, but for the last digits of sums.

What several queries look for is asked together, in one go through the shards (:class:`Looks`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.comparing import Comparing
from golddiff.adaptive.drawing import SHARES, larger_factor
from golddiff.adaptive.looking import Stream, linear_work
from golddiff.cluster.keys import float32_of
from golddiff.cluster.over_shards import OverShards
from golddiff.cluster.recipes import ByRank, Candidates, Chosen, Drawn, Stage
from golddiff.cluster.search import extent, nearest
from golddiff.cluster.selected import Batch, Selected
from golddiff.support import Support


class ShardedLooker:
    """Compares every image of every shard; a :class:`golddiff.adaptive.looking.Looker`.

    Args:
        shards: of the store.
        measure: how they rank their images.
        comparing: what it takes.
    """

    together = True

    def __init__(self, shards: OverShards, measure: ByRank, comparing: Comparing) -> None:
        self.tiles, self.images = measure.tiles, shards.store.count_of(measure.label)
        self._shards, self._measure, self._comparing = shards, measure, comparing
        self._looks: Looks | None = None

    def look(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None, without: int | None = None
    ) -> ShardedLook:
        """See the protocol. Looks are taken together until one of them is asked."""
        if self._looks is None or self._looks.begun:
            self._looks = Looks(self._shards, self._measure)
        number = self._looks.add(x, without)
        return ShardedLook(self._looks, number, range(self.tiles) if tiles is None else tiles)

    def looks(self, x: Iterable[NDArray[np.float32]]) -> list[ShardedLook]:
        """What some queries see, and no others with them."""
        self._looks = None
        return [self.look(query) for query in x]

    def work(self, name: str, k: int) -> float:
        """See the protocol: a single store's, so that the plans are a single store's."""
        return linear_work(name, self.tiles, self.images, self._comparing)

    def counted(self, name: str, k: int) -> tuple[int, int]:
        """See the protocol; over all shards."""
        return self._comparing.counted(self.tiles, self.images)


class ShardedLook:
    """One query's look; a :class:`golddiff.adaptive.looking.Look`."""

    def __init__(self, looks: Looks, number: int, tiles: Sequence[int]) -> None:
        self._looks, self._number, self._tiles = looks, number, tiles

    def nearest(self, k: int, of: int | None = None) -> list[Support]:
        """Each tile's nearest images."""
        return self._by_tile(self.nearest_of_all(k))

    def screened(self, k: int, sigma: float) -> list[Support]:
        """The same: every image is compared by all that there is."""
        return self.nearest(k)

    def drawn(self, k: int, sigma: float, stream: Stream) -> list[Support]:
        """About k images drawn by weight for each tile."""
        return self._by_tile(self.drawn_of_all(k, sigma, stream))

    def nearest_of_all(self, k: int) -> Selected:
        """The support of the query, whatever its tiles."""
        return Selected(self._looks.shards, self._looks.nearest(k), self._number)

    def drawn_of_all(self, k: int, sigma: float, stream: Stream) -> Selected:
        """The support of the query, whatever its tiles."""
        return Selected(self._looks.shards, self._looks.drawn(k, sigma, stream), self._number)

    def _by_tile(self, chosen: Selected) -> list[Support]:
        if chosen.batch.side is None:
            return [chosen]
        return [Selected(chosen.shards, chosen.batch, chosen.query, t) for t in self._tiles]


class Looks:
    """What some queries see of a class's images, each but for one row, as each tile ranks them.

    Attributes:
        shards: of the store.
        begun: whether something was asked; no query joins any more.
    """

    def __init__(self, shards: OverShards, measure: ByRank) -> None:
        self.shards, self._measure = shards, measure
        self._x: list[NDArray[np.float32]] = []
        self._without: list[int | None] = []
        self._asked: tuple[str, Sequence[Stage]] | None = None
        # The last answers alone: supports grow, and small ones are not asked for again.
        self._nearest: tuple[int, Batch] | None = None
        self._weights: tuple[tuple[int, float], Sequence[Drawn]] | None = None
        self._drawn: tuple[tuple[int, float, Stream], Batch] | None = None

    @property
    def begun(self) -> bool:
        """See the class."""
        return self._asked is not None

    def add(self, x: NDArray[np.float32], without: int | None) -> int:
        """One more query (D,); its number."""
        self._x.append(x)
        self._without.append(without)
        return len(self._x) - 1

    def nearest(self, k: int) -> Batch:
        """Of each query and tile the k nearest images."""
        if self._nearest is None or self._nearest[0] != k:
            token, stages = self._begin()
            self._nearest = k, Batch(nearest(self.shards.pool, stages, k), token, k)
        return self._nearest[1]

    def drawn(self, k: int, sigma: float, stream: Stream) -> Batch:
        """Of each query and tile about k images by weight, all by the same random numbers."""
        key = (k, sigma, stream)
        if self._drawn is None or self._drawn[0] != key:
            token, _ = self._begin()
            weights = self._weights_for(k, sigma)
            chosen: list[Chosen] = [
                replace(one, streams=[stream] * len(self._x)) for one in weights
            ]
            self._drawn = key, Batch(chosen, token, k)
        return self._drawn[1]

    def _begin(self) -> tuple[str, Sequence[Stage]]:
        if self._asked is None:
            token = self.shards.hold(np.stack(self._x))
            among = [Candidates(self._measure.label)] * self.shards.pool.size
            some_left_out = any(row is not None for row in self._without)
            left_out = tuple(self._without) if some_left_out else None
            self._asked = token, self.shards.stages(token, self._measure, among, left_out)
        return self._asked

    def _weights_for(self, k: int, sigma: float) -> Sequence[Drawn]:
        """The draws of each shard but for their random numbers."""
        if self._weights is None or self._weights[0] != (k, sigma):
            self._weights = (k, sigma), self._found(k, sigma)
        return self._weights[1]

    def _found(self, k: int, sigma: float) -> Sequence[Drawn]:
        pool, stages = self.shards.pool, self._begin()[1]
        found = extent(pool, stages)
        n, best = found.images, float32_of(found.low)
        masses = [a for a in pool.gather("masses", lambda s: (stages[s], best, sigma)) if a]
        exact, tempered = (np.sum(part, axis=0) for part in zip(*masses, strict=True))
        first = np.full(len(best), k / sum(SHARES))
        drawn = [Drawn(stage, sigma, best, exact, tempered, first, n, []) for stage in stages]
        c = self._factors(drawn, k)
        return [replace(one, c=c) for one in drawn]

    def _factors(self, drawn: Sequence[Drawn], k: int) -> NDArray[np.float64]:
        """Each problem's c, see :func:`golddiff.adaptive.drawing.larger_factor`."""
        c = drawn[0].c.copy()
        open_ = np.arange(len(c))
        while len(open_):
            tried = [replace(one, c=c) for one in drawn]
            answers = self.shards.pool.gather("sure", lambda s: (tried[s], open_))  # noqa: B023
            numbers, rests = (
                np.sum(part, axis=0) for part in zip(*[a for a in answers if a], strict=True)
            )
            still = []
            for i, problem in enumerate(open_.tolist()):
                larger = larger_factor(float(c[problem]), k, int(numbers[i]), float(rests[i]))
                if larger is not None:
                    c[problem] = larger
                    still.append(problem)
            open_ = np.array(still, np.int64)
        return c
