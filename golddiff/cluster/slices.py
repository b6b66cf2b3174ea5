"""Supports cut at the borders of the shards.

A listed support goes to each shard as the rows that lie there, a described one as its description:
nobody lists all images of a store.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, DescribedSupport, Support, TiledSupport, grouped
from golddiff.system.errors import ClusterError
from golddiff.system.numbers import I64


def listed_here(store: ImageStore, parts: Sequence[AnySupport]) -> list[AnySupport]:
    """One support a query, in rows of the shard; the same object where queries share it."""
    made = {id(part): of_part(store, part) for part in {id(p): p for p in parts}.values()}
    return [made[id(part)] for part in parts]


def of_part(store: ImageStore, part: AnySupport) -> AnySupport:
    """The images of a support that lie in a shard; none of a class it has not."""
    if not isinstance(part, DescribedSupport):
        return part
    here = part.label is None or part.label in store.class_counts
    return Support(part.rows_in(store.rows_of(part.label) if here else np.empty(0, np.int64)))


@dataclass(frozen=True)
class Borders:
    """Where the shards lie in the store."""

    sizes: Sequence[int]  # images of each shard
    counts: Sequence[dict[int, int]]  # of each shard, images of each class; empty without labels

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

    def parts(self, supports: Sequence[AnySupport]) -> list[list[AnySupport]]:
        """Each shard's part of the supports of some queries; shared ones are cut once."""
        cut = {id(support): self.cut(support) for support, _ in grouped(supports)}
        each = [cut[id(support)] for support in supports]
        return [[parts[shard] for parts in each] for shard in range(len(self.sizes))]

    def cut(self, support: AnySupport) -> Sequence[AnySupport]:
        """Each shard's part of one support."""
        if isinstance(support, DescribedSupport):
            places = [0, *accumulate(self.of_class(support.label))][:-1]
            return [replace(support, listing=_elsewhere, place=place) for place in places]
        if isinstance(support, TiledSupport):
            tiles = [self._rows(tile) for tile in support.tiles]
            return [TiledSupport(support.side, of_shard) for of_shard in zip(*tiles, strict=True)]
        return self._rows(support)

    def _rows(self, support: Support) -> list[Support]:
        borders = [*np.searchsorted(support.rows, self.firsts), len(support.rows)]
        weights = support.log_weights
        return [
            Support(support.rows[a:b] - first, None if weights is None else weights[a:b])
            for a, b, first in zip(borders, borders[1:], self.firsts, strict=False)
        ]


def _elsewhere(support: DescribedSupport) -> I64:
    """Stands for the driver's own way of listing rows, which does not travel."""
    raise ClusterError("cluster: a shard lists its own part of a support alone")
