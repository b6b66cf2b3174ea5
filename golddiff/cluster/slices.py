"""Supports cut at the borders of the shards, and put together again.

A listed support goes to each shard as the rows that lie there, a described one as its description:
nobody lists all images of a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.lowest import lowest
from golddiff.store.images import ImageStore
from golddiff.store.nearest import Found
from golddiff.support import AnySupport, DescribedSupport, Support, TiledSupport, grouped
from golddiff.system.errors import ClusterError


@dataclass(frozen=True)
class Part:
    """The part of a described support that lies in one shard.

    Attributes:
        support: the whole.
        place: how many images of its class the shards before have.
    """

    support: DescribedSupport
    place: int


@dataclass(frozen=True)
class Supports:
    """Supports of some queries, the part of one shard: rows of its own.

    Attributes:
        once: each of them once, listed or described.
        which: for each query, its place there.
    """

    once: Sequence[Support | TiledSupport | Part]
    which: Sequence[int]

    def over(self, store: ImageStore) -> list[AnySupport]:
        """One a query, the same object where queries share it."""
        once = [_here(store, support) for support in self.once]
        return [once[i] for i in self.which]


def _here(store: ImageStore, support: Support | TiledSupport | Part) -> AnySupport:
    if isinstance(support, Part):
        return listed_here(store, support)
    if isinstance(support, TiledSupport):
        return TiledSupport(support.side, list(map(_wide, support.tiles)))
    return _wide(support)


def _wide(support: Support) -> Support:
    return Support(support.rows.astype(np.int64), support.log_weights)


def narrow(rows: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of a shard as they travel: 4 bytes each, where they fit."""
    return rows.astype(np.int32) if len(rows) == 0 or rows.max() < 2**31 else rows


def listed_here(store: ImageStore, part: Part) -> Support:
    """The images of a described support that lie in a shard; none of a class it has not."""
    label = part.support.label
    here = label is None or label in store.class_counts
    rows = store.rows_of(label) if here else np.empty(0, np.int64)
    return Support(part.support.rows_in(rows, part.place))


@dataclass(frozen=True)
class Borders:
    """Where the shards lie in the store.

    Attributes:
        sizes: images of each shard.
        counts: of each shard, images of each class; empty without labels.
    """

    sizes: Sequence[int]
    counts: Sequence[dict[int, int]]

    @property
    def firsts(self) -> list[int]:
        """(S,) row of each shard's first image."""
        return [0, *accumulate(self.sizes)][:-1]

    def of_class(self, label: int | None) -> list[int]:
        """How many images of a class, or of all, each shard has."""
        if label is None:
            return list(self.sizes)
        return [counts.get(label, 0) for counts in self.counts]

    def class_counts(self) -> dict[int, int]:
        """Images of each class that has any, ascending."""
        classes = sorted(set().union(*self.counts))
        return {label: sum(self.of_class(label)) for label in classes}

    def parts(self, supports: Sequence[AnySupport]) -> list[Supports]:
        """Each shard's part of the supports of some queries."""
        groups = grouped(supports)
        which = [0] * len(supports)
        for place, (_, queries) in enumerate(groups):
            for query in queries:
                which[query] = place
        cut = [self.cut(support) for support, _ in groups]
        return [Supports([c[shard] for c in cut], which) for shard in range(len(self.sizes))]

    def cut(self, support: AnySupport) -> Sequence[Any]:
        """Each shard's part of one support."""
        if isinstance(support, DescribedSupport):
            told = replace(support, listing=_elsewhere)
            places = [0, *accumulate(self.of_class(support.label))]
            return [Part(told, place) for place in places[:-1]]
        if isinstance(support, TiledSupport):
            tiles = [self._rows(tile) for tile in support.tiles]
            return [TiledSupport(support.side, of_shard) for of_shard in zip(*tiles, strict=True)]
        return self._rows(support)

    def _rows(self, support: Support) -> list[Support]:
        borders = [*np.searchsorted(support.rows, self.firsts), len(support.rows)]
        weights = support.log_weights
        return [
            Support(narrow(support.rows[a:b] - first), None if weights is None else weights[a:b])
            for a, b, first in zip(borders, borders[1:], self.firsts, strict=False)
        ]


def _elsewhere(support: DescribedSupport) -> NDArray[np.int64]:
    """Stands for the driver's own way of listing rows, which does not travel."""
    raise ClusterError("cluster: a shard lists its own part of a support alone")


def nearest_of(found: Sequence[tuple[int, Found | None]], k: int) -> list[Support]:
    """Of each location the k nearest of all shards; shards come in the order of their rows."""
    there = [(first, part) for first, part in found if part is not None]
    supports = []
    for tile in range(len(there[0][1].tiles)):
        all_ = _together([(first, part.tiles[tile]) for first, part in there])
        distances = np.concatenate([part.distances[tile] for _, part in there])
        supports.append(all_.at(lowest(distances, k)))
    return supports


def joined(parts: Sequence[tuple[int, Support | TiledSupport]]) -> Support | TiledSupport:
    """The parts of one query's support, each of a shard, as rows of the store."""
    tiled = [(first, part) for first, part in parts if isinstance(part, TiledSupport)]
    if not tiled:
        return _together([(first, p) for first, p in parts if isinstance(p, Support)])
    count = len(tiled[0][1].tiles)
    tiles = [_together([(first, part.tiles[t]) for first, part in tiled]) for t in range(count)]
    return TiledSupport(tiled[0][1].side, tiles)


def _together(parts: Sequence[tuple[int, Support]]) -> Support:
    rows = np.concatenate([part.rows.astype(np.int64) + first for first, part in parts])
    if all(part.log_weights is None for _, part in parts):
        return Support(rows)
    return Support(rows, np.concatenate([part.log_importance() for _, part in parts]))
