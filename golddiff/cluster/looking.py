"""How queries look at the images of all shards: the nearest, and draws by weight, from a few sums.

Each shard ranks its own images. The nearest of all are found as in
:mod:`golddiff.cluster.search`. For a draw by weight the driver needs, over all shards, the least
distance, the sums of the weights and the factor c that gives the number wanted; each is a number a
shard, asked for in turn. Every shard then draws its own images, with its part of one stream of
random numbers: images and weights are the single store's, but for the last digits of sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.drawing import SHARES, larger_factor
from golddiff.cluster.keys import float32_of
from golddiff.cluster.over_shards import OverShards
from golddiff.cluster.recipes import ByRank, Candidates, Drawn, Stage
from golddiff.cluster.search import extent, nearest
from golddiff.cluster.selected import Selected


@dataclass(frozen=True)
class ShardedLook:
    """What some queries (b, D) see of the candidates, as each of their tiles ranks them.

    Attributes:
        shards: of the store.
        token: of the queries.
        queries: how many.
        measure: how images are ranked.
        stages: of each shard.
    """

    shards: OverShards
    token: str
    queries: int
    measure: ByRank
    stages: Sequence[Stage]

    @classmethod
    def at(
        cls,
        shards: OverShards,
        x: NDArray[np.float32],
        measure: ByRank,
        left_out: tuple[int | None, ...] | None = None,
    ) -> ShardedLook:
        """The look of queries (b, D) at all images of the measure's class, each but for one row."""
        token = shards.hold(x)
        among = [Candidates(measure.label)] * shards.pool.size
        stages = shards.stages(token, measure, among, left_out)
        return cls(shards, token, len(x), measure, stages)

    def nearest(self, k: int) -> list[Selected]:
        """The support of each query: of each of its tiles the k nearest images."""
        chosen = nearest(self.shards.pool, self.stages, k)
        return self.shards.selected(chosen, self.token, k, self.queries)

    def drawn(self, k: int, streams: Sequence[tuple[int, ...]]) -> list[Selected]:
        """The support of each query: about k images for each tile, drawn by weight.

        Args:
            k: expected number, below the number of candidates.
            streams: of each query, seeds of the random numbers, one a candidate.
        """
        pool, stages, sigma = self.shards.pool, self.stages, self.measure.sigma
        found = extent(pool, stages)
        n, best = found.images, float32_of(found.low)
        masses = [a for a in pool.gather("masses", lambda s: (stages[s], best, sigma)) if a]
        # Whoever is near has the equal weight 0.2 / n too, and the others have it alone.
        _, exact, tempered = (np.sum(part, axis=0) for part in zip(*masses, strict=True))
        total = np.full(len(best), sum(SHARES))
        drawn = [Drawn(stage, best, exact, tempered, k / total, n, streams) for stage in stages]
        c = self._factors(drawn, total, k)
        return self.shards.selected(
            [replace(one, c=c) for one in drawn], self.token, k, self.queries
        )

    def _factors(
        self, drawn: Sequence[Drawn], total: NDArray[np.float64], k: int
    ) -> NDArray[np.float64]:
        """Each problem's c, see :func:`golddiff.adaptive.drawing.larger_factor`."""
        c = drawn[0].c.copy()
        open_ = np.arange(len(c))
        while len(open_):
            tried = [replace(one, c=c) for one in drawn]
            answers = self.shards.pool.gather("sure", lambda s: (tried[s], open_))  # noqa: B023
            numbers, sums = (
                np.sum(part, axis=0) for part in zip(*[a for a in answers if a], strict=True)
            )
            still = []
            for i, problem in enumerate(open_.tolist()):
                larger = larger_factor(
                    float(c[problem]), float(total[problem]), k, int(numbers[i]), float(sums[i])
                )
                if larger is not None:
                    c[problem] = larger
                    still.append(problem)
            open_ = np.array(still, np.int64)
        return c
