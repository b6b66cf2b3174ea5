"""Which of a shard's images are chosen: candidates, their distances, cuts and draws."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.blocks import BlockRanking
from golddiff.adaptive.drawing import mixture_of
from golddiff.adaptive.looking import LinearLooker
from golddiff.adaptive.ranking import Ranking
from golddiff.adaptive.schedule import AdaptiveSchedule, FittedSchedule
from golddiff.cluster.distances import Kept
from golddiff.cluster.recipes import (
    Below,
    ByPixels,
    ByProxy,
    ByRank,
    Candidates,
    Chosen,
    Drawn,
    Listed,
    Stage,
)
from golddiff.cluster.streams import drawn_places, uniform_part
from golddiff.kernels.mask_tiles import Side
from golddiff.kernels.rows import squared_distances
from golddiff.kernels.weights import Mixture, sure, taken, tempered_weights
from golddiff.noise import bits, precision
from golddiff.store.proxy import pool
from golddiff.support import AnySupport, Support, TiledSupport

if TYPE_CHECKING:
    from golddiff.cluster.server import ShardServer

STAGES_KEPT = 2  # at least: a stage and the one that it stands on
BYTES_KEPT = 1e9  # of distances, before the oldest stages give way
CANDIDATES_KEPT = 16


class Choices:
    """The choices that concern one shard; what was computed for the last few is kept."""

    def __init__(self, server: ShardServer) -> None:
        self._server = server
        self._stages: OrderedDict[str, Kept] = OrderedDict()
        self._candidates: OrderedDict[Candidates, NDArray[np.int64]] = OrderedDict()
        self._schedules: dict[str, FittedSchedule] = {}

    def renew(self) -> None:
        """Let go everything that follows from mean and covariance."""
        self._schedules.clear()
        self._stages.clear()

    def measured(self, estimator: dict[str, Any], sigma: float, side: Side | None) -> None:
        """See :meth:`golddiff.cluster.server.ShardServer.forget`."""
        schedule = self._schedules.get(repr(estimator))
        if schedule is not None:
            schedule.forget(sigma, side)

    def forget(self, token: str) -> None:
        """Let go what was computed for some queries."""
        for name in [name for name, kept in self._stages.items() if kept.token == token]:
            del self._stages[name]

    def rows(self, candidates: Candidates) -> NDArray[np.int64]:
        """Local rows of the candidates that lie here, ascending."""
        if candidates not in self._candidates:
            while len(self._candidates) >= CANDIDATES_KEPT:
                self._candidates.popitem(last=False)
            self._candidates[candidates] = self._rows(candidates)
        return self._candidates[candidates]

    def _rows(self, candidates: Candidates) -> NDArray[np.int64]:
        rows, draw = self._of_class(candidates.label), candidates.draw
        if draw is not None:
            place = self._server.place
            first = place.first_of[candidates.label]
            label = 0 if candidates.label is None else candidates.label + 1
            places = drawn_places(
                (draw.seed, bits(draw.sigma), label), place.images_of[candidates.label],
                draw.count, first, first + len(rows),
            )  # fmt: skip
            rows = rows[places - first]
        if candidates.without:
            left_out = np.array(candidates.without) - self._server.place.first
            rows = rows[~np.isin(rows, left_out)]
        return rows

    def _local(self, row: int) -> int:
        """A row of the store as a row here; below 0 or past the end where it is elsewhere."""
        return row - self._server.place.first

    def _of_class(self, label: int | None) -> NDArray[np.int64]:
        labels = self._server.store.labels
        if label is None or labels is None:
            return self._server.store.rows_of(None)
        return np.flatnonzero(labels.numpy() == label)

    def kept(self, stage: Stage) -> Kept:
        """The distances of a stage; computed at the first question."""
        if stage.name in self._stages:
            self._stages.move_to_end(stage.name)
            return self._stages[stage.name]
        kept = self._computed(stage)
        self._stages[stage.name] = kept
        while len(self._stages) > STAGES_KEPT and self._bytes() > BYTES_KEPT:
            self._stages.popitem(last=False)
        return kept

    def _bytes(self) -> int:
        return sum(d.nbytes for kept in self._stages.values() for d in kept.distances)

    def _computed(self, stage: Stage) -> Kept:
        store, x = self._server.store, self._server.queries(stage.token)
        if isinstance(stage.among, Below):
            rows = self._below(stage.among, list(range(len(x))))
        else:
            rows = [self.rows(stage.among)] * len(x)
        if isinstance(stage.measure, ByRank):
            assert isinstance(stage.among, Candidates)
            ranking = self._ranking(stage.measure)
            # One by one: stages that are kept must not hold each other's memory.
            found = [ranking.distances(query[None])[0] for query in x]
            if stage.left_out is not None:  # ranked too, and dropped afterwards
                local = [None if row is None else self._local(row) for row in stage.left_out]
                kept = [rows[0] != (-1 if row is None else row) for row in local]
                rows = [rows[0][some] for some in kept]
                found = [d[:, some] for d, some in zip(found, kept, strict=True)]
            return Kept.of(stage.token, rows, stage.tiles, [tile for d in found for tile in d])
        if isinstance(stage.measure, ByProxy):
            proxies = store.proxies(stage.measure.shape)
            pooled = pool(x.reshape(-1, *store.shape), stage.measure.shape)
            each = [(proxies, pooled[i : i + 1], 1.0, 0.0) for i in range(len(x))]
        else:
            assert isinstance(stage.measure, ByPixels)
            each = [(store.flat, x[i : i + 1], store.scale, store.offset) for i in range(len(x))]
        if len(x) > 1 and all(some is rows[0] for some in rows):  # one pass over the images
            flat, _, scale, offset = each[0]
            queries = np.concatenate([query for _, query, _, _ in each])
            distances = list(squared_distances(flat, rows[0], queries, scale, offset))
        else:
            distances = [
                squared_distances(flat, some, query, scale, offset)[0]
                for some, (flat, query, scale, offset) in zip(rows, each, strict=True)
            ]
        return Kept.of(stage.token, rows, 1, distances)

    def _ranking(self, measure: ByRank) -> Ranking | BlockRanking | _Nothing:
        key = repr(measure.estimator)
        if key not in self._schedules:
            self._schedules[key] = FittedSchedule(
                self._server.estimator(measure.estimator), AdaptiveSchedule(index=False)
            )
        if len(self._of_class(measure.label)) == 0:
            return _Nothing(measure.tiles)
        looker = self._schedules[key].looker(measure.sigma, measure.label, measure.kind)
        assert isinstance(looker, LinearLooker)
        return looker.ranking

    def masses(
        self, stage: Stage, best: NDArray[np.float32], sigma: float
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """See :meth:`golddiff.cluster.server.ShardServer.masses`."""
        sums = [
            tempered_weights(distances, float(least), precision(sigma))[1:]
            for distances, least in zip(self.kept(stage).distances, best, strict=True)
        ]
        exact, tempered = zip(*sums, strict=True)
        return np.array(exact), np.array(tempered)

    def sure(
        self, chosen: Drawn, problems: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """See :meth:`golddiff.cluster.server.ShardServer.sure`."""
        found = [sure(*self._weights(chosen, int(p)), float(chosen.c[p])) for p in problems]
        return np.array([n for n, _ in found], np.int64), np.array([rest for _, rest in found])

    def _weights(self, chosen: Drawn, problem: int) -> tuple[NDArray[np.float32], Mixture]:
        distances, best = self.kept(chosen.stage).distances[problem], float(chosen.best[problem])
        sums = float(chosen.exact[problem]), float(chosen.tempered[problem])
        tempered, *_ = tempered_weights(distances, best, precision(chosen.sigma))
        return tempered, mixture_of(*sums, int(chosen.images[problem]))

    def supports(self, chosen: Chosen, queries: list[int]) -> list[AnySupport]:
        """What each of some queries weighs here, in local rows; a shard may have nothing."""
        if isinstance(chosen, Candidates):
            return [Support(self.rows(chosen))] * len(queries)
        if isinstance(chosen, Listed):
            return [chosen.supports[query] for query in queries]
        if isinstance(chosen, Below):
            tiles = [Support(rows) for rows in self._below(chosen, queries)]
        else:
            tiles = [support for query in queries for support in self._drawn(chosen, query)]
        side, each = chosen.stage.side, chosen.stage.tiles
        if side is None:
            return list(tiles)
        return [TiledSupport(side, tiles[i : i + each]) for i in range(0, len(tiles), each)]

    def _below(self, below: Below, queries: list[int]) -> list[NDArray[np.int64]]:
        """Local rows up to the cut of each problem of some queries, ascending."""
        kept, tiles = self.kept(below.stage), below.stage.tiles
        found = []
        for query in queries:
            for problem in range(query * tiles, (query + 1) * tiles):
                keys = kept.keys(problem)
                chosen = np.flatnonzero(keys <= below.keys[problem])
                at = np.flatnonzero(keys[chosen] == below.keys[problem])
                if len(at) > below.ties[problem]:
                    chosen = np.delete(chosen, at[below.ties[problem] :])
                found.append(kept.rows[query][chosen])
        return found

    def _drawn(self, chosen: Drawn, query: int) -> list[Support]:
        stage, place = chosen.stage, self._server.place
        assert isinstance(stage.among, Candidates)
        label, rows = stage.among.label, self.kept(stage).rows[query]
        row = None if stage.left_out is None else stage.left_out[query]
        of_class = self.rows(stage.among)
        uniform = uniform_part(chosen.streams[query], place.first_of[label], len(of_class))
        if row is not None:  # it has a number of the stream too
            uniform = uniform[of_class != self._local(row)]
        supports = []
        for problem in range(query * stage.tiles, (query + 1) * stage.tiles):
            c, weights = float(chosen.c[problem]), self._weights(chosen, problem)
            places, p = taken(*weights, c, uniform, len(rows) // 16)
            supports.append(Support(rows[places], -np.log(p.astype(np.float64))))
        return supports


class _Nothing:
    """The ranking of a class that has no images here."""

    def __init__(self, tiles: int) -> None:
        self.rows = np.empty(0, np.int64)
        self._tiles = tiles

    def distances(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        return np.empty((len(x), self._tiles, 0), np.float32)
