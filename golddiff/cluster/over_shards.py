"""Denoising over a store in shards: what the driver does in a step."""

from __future__ import annotations

import itertools
import uuid
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from golddiff import describe
from golddiff.cluster.pieces import Pieces
from golddiff.cluster.pool import Pool
from golddiff.cluster.recipes import (
    Below,
    ByPixels,
    ByProxy,
    ByRank,
    Candidates,
    Chosen,
    Draw,
    Drawn,
    Listed,
    Stage,
)
from golddiff.cluster.search import nearest
from golddiff.cluster.selected import Batch, Selected
from golddiff.denoiser import Estimator
from golddiff.errors import ArgumentError, ClusterError
from golddiff.kernels.mask_tiles import Side, tile_count, tile_of_each
from golddiff.posterior import Posterior
from golddiff.store.proxy import quarter_shape, side_16_shape
from golddiff.support import AnySupport, Support, TiledSupport

if TYPE_CHECKING:
    from golddiff.cluster.store import ShardedStore
    from golddiff.supports.paper import PaperSchedule

TOKENS_KEPT = 64


def _alike(supports: Sequence[AnySupport]) -> list[list[int]]:
    """Which supports were chosen together; those that were not chosen in shards, together too."""
    groups: dict[int | None, list[int]] = {}
    for i, support in enumerate(supports):
        batch = support.batch if isinstance(support, Selected) and support.tile is None else None
        groups.setdefault(None if batch is None else id(batch), []).append(i)
    return list(groups.values())


class OverShards:
    """What :class:`golddiff.denoiser.Estimator` and the schedules ask of a sharded store.

    Args:
        store: the store.
        pool: its shards' processes.
    """

    def __init__(self, store: ShardedStore, pool: Pool) -> None:
        self.store, self.pool = store, pool
        self._held: OrderedDict[str, NDArray[np.float32]] = OrderedDict()
        self._names = (f"{uuid.uuid4().hex[:8]}-{i}" for i in itertools.count())

    # Queries.

    def hold(self, x: NDArray[np.float32]) -> str:
        """A name for queries (b, D), which go to the shards at once, and again to who asks."""
        token = next(self._names)
        self._held[token] = x
        self.pool.tell("hold", token, x)
        while len(self._held) > TOKENS_KEPT:
            self._held.popitem(last=False)
        return token

    def held(self, token: str) -> NDArray[np.float32]:
        """The queries of a name.

        Raises:
            ClusterError: they were let go.
        """
        if token not in self._held:
            raise ClusterError("cluster: a support was used long after it was chosen; choose again")
        return self._held[token]

    # Choosing.

    def everything(self, candidates: Candidates) -> Selected:
        """All images of a class, or all, less some."""
        images = self.store.count_of(candidates.label) - len(candidates.without)
        return Selected(self, Batch([candidates] * self.pool.size, None, images), 0)

    def paper(
        self, schedule: PaperSchedule, x: NDArray[np.float32], sigma: float, label: int | None,
        seed: int,
    ) -> list[Selected]:  # fmt: skip
        """The supports of :meth:`golddiff.supports.paper.PaperSchedule.supports`, the same rows."""
        n, shape = self.store.count_of(label), self.store.shape
        m, k = schedule.budgets(sigma, n)
        screened = schedule.screened(sigma, n)
        if schedule.variant == "text":
            proxy, candidates, images = quarter_shape(shape), Candidates(label), n
        else:
            draw = Draw(seed, sigma, m) if m < n else None
            proxy, candidates, images = side_16_shape(shape), Candidates(label, draw), m
        token = self.hold(x)
        among: Sequence[Candidates | Below] = [candidates] * self.pool.size
        if screened < images:
            among = self._nearest(token, ByProxy(proxy), among, screened)
        if k < min(screened, images):
            among = self._nearest(token, ByPixels(), among, k)
        return self.selected(among, token, min(k, images), len(x))

    def _nearest(
        self,
        token: str,
        measure: ByProxy | ByPixels | ByRank,
        among: Sequence[Candidates | Below],
        count: int,
    ) -> list[Below]:
        return nearest(self.pool, self.stages(token, measure, among), count)

    def stages(
        self,
        token: str,
        measure: ByProxy | ByPixels | ByRank,
        among: Sequence[Candidates | Below],
        left_out: tuple[int | None, ...] | None = None,
    ) -> list[Stage]:
        """Each shard's stage of one name."""
        name = next(self._names)
        return [Stage(name, token, measure, images, left_out) for images in among]

    def selected(
        self, chosen: Sequence[Chosen], token: str | None, images: int, queries: int
    ) -> list[Selected]:
        """The supports of some queries that were chosen together."""
        batch = Batch(chosen, token, images)
        return [Selected(self, batch, query) for query in range(queries)]

    def rows(self, support: Selected) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Store rows, ascending, and log weights of one support, fetched from the shards."""
        chosen = support.batch.chosen
        answers = self.pool.gather(
            "rows", lambda shard: (chosen[shard], support.query, support.tile)
        )
        there = [answer for answer in answers if answer is not None]
        rows = np.concatenate([rows for rows, _ in there])
        if all(weights is None for _, weights in there):
            return rows, None
        return rows, np.concatenate([weights for _, weights in there])

    # Weighing.

    def denoise(
        self,
        estimator: Estimator,
        x: NDArray[np.float32],
        sigma: float,
        supports: Sequence[AnySupport],
    ) -> NDArray[np.float32]:
        """Posterior means (b, D) of queries (b, D), each over its support in all shards.

        Raises:
            ArgumentError: an estimator that the shards do not know; a shard's memory limit.
            ClusterError: a shard is lost; no image of the supports is left.
        """
        groups = _alike(supports)
        if len(groups) > 1:
            out = np.empty_like(x)
            for group in groups:
                out[group] = self.denoise(estimator, x[group], sigma, [supports[i] for i in group])
            return out
        chosen, token, queries = self._located(x, supports)
        starts = self._starts(estimator, chosen, queries)
        description = describe.describe(estimator)
        merged: Posterior | list[Pieces] | None = self.pool.reduced(
            "posterior",
            lambda shard: (
                description, token, sigma, chosen[shard], queries,
                None if starts is None else starts[shard],
            ),
        )  # fmt: skip
        try:
            if isinstance(merged, list):
                return np.concatenate([pieces.mean() for pieces in merged]).astype(np.float32)
            assert merged is not None
            return merged.mean().astype(np.float32)
        except ZeroDivisionError:
            raise ClusterError("cluster: no image to be weighed is left in the shards") from None

    def tile_means(
        self,
        estimator: Estimator,
        x: NDArray[np.float32],
        sigma: float,
        side: Side,
        pieces: Sequence[tuple[int, int, Support]],
    ) -> NDArray[np.float32]:
        """See :meth:`golddiff.denoiser.Estimator.tile_means`.

        The shards weigh all tiles of a query; what was not asked for is dropped here.
        """
        of_query: dict[int, dict[int, Support]] = {}
        for query, tile, support in pieces:
            of_query.setdefault(query, {})[tile] = support
        queries = list(of_query)
        supports = [self._of_tiles(side, of_query[query]) for query in queries]
        means = self.denoise(estimator, x[queries], sigma, supports)
        tile_of = tile_of_each(self.store.shape, side)
        out = np.zeros_like(x)
        for query, mean in zip(queries, means, strict=True):
            wanted = np.isin(tile_of, list(of_query[query]))
            out[query, wanted] = mean[wanted]
        return out

    def _of_tiles(self, side: Side, tiles: dict[int, Support]) -> AnySupport:
        """A support of a whole query that weighs the given images at the given tiles."""
        (_, first), *others = tiles.items()
        if getattr(first, "tile", None) is None and all(s is first for _, s in others):
            return first
        chosen_together = all(
            isinstance(s, Selected)
            and s.tile == tile
            and s.batch.side == side
            and isinstance(first, Selected)
            and (s.batch, s.query) == (first.batch, first.query)
            for tile, s in tiles.items()
        )
        if chosen_together and isinstance(first, Selected):
            return Selected(self, first.batch, first.query)
        count = tile_count(self.store.shape, side)
        return TiledSupport(side, [tiles.get(t, first) for t in range(count)])

    def _located(
        self, x: NDArray[np.float32], supports: Sequence[AnySupport]
    ) -> tuple[Sequence[Chosen], str, list[int]]:
        """What each shard is asked: its part of the supports, the queries, and which of them."""
        first = supports[0]
        if isinstance(first, Selected) and all(
            isinstance(s, Selected) and s.batch is first.batch and s.tile is None for s in supports
        ):
            batch, queries = first.batch, [s.query for s in supports if isinstance(s, Selected)]
            if batch.token is None:
                return batch.chosen, self.hold(x), list(range(len(x)))
            if np.array_equal(self.held(batch.token)[queries], x):
                return batch.chosen, batch.token, queries
        return self._listed(supports), self.hold(x), list(range(len(x)))

    def _listed(self, supports: Sequence[AnySupport]) -> list[Listed]:
        """Supports given row by row, cut at the shards' borders."""
        once = {id(support): support for support in supports}
        parts = {key: self._split(support) for key, support in once.items()}
        return [
            Listed([parts[id(support)][shard] for support in supports])
            for shard in range(self.pool.size)
        ]

    def _split(self, support: AnySupport) -> list[AnySupport]:
        if isinstance(support, TiledSupport):
            tiles = [self._split(tile) for tile in support.tiles]
            return [
                TiledSupport(support.side, [tile[shard] for tile in tiles])  # type: ignore[misc]
                for shard in range(self.pool.size)
            ]
        rows, weights = support.rows, support.log_weights
        borders = np.searchsorted(rows, self.store.firsts)
        return [
            Support(rows[a:b] - first, None if weights is None else weights[a:b])
            for a, b, first in zip(
                borders, [*borders[1:], len(rows)], self.store.firsts, strict=True
            )
        ]

    def _starts(
        self, estimator: Estimator, chosen: Sequence[Chosen], queries: list[int]
    ) -> list[list[int]] | None:
        """For an average of batches: how many of each support lie in the shards before."""
        if getattr(estimator, "weighting", "ss") != "wss":
            return None
        if isinstance(chosen[0], Drawn):
            raise ArgumentError(
                "schedule: wss weighs no images drawn by weight; use weighting 'ss'"
            )
        answers = self.pool.gather("sizes", lambda shard: (chosen[shard], queries))
        sizes = np.array(
            [np.zeros(len(queries), np.int64) if a is None else a for a in answers], np.int64
        )
        starts: Any = np.cumsum(sizes, axis=0) - sizes
        return [row.tolist() for row in starts]
