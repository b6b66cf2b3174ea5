"""Cut supports into one part per shard.

A list of rows is split at the shards' borders. A :class:`RuleSupport` travels as its rule, and
each shard expands it into its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, RuleSupport, Support, TiledSupport, grouped
from golddiff.system.errors import ClusterError
from golddiff.system.numbers import I64


def expand_all(store: ImageStore, parts: Sequence[AnySupport]) -> list[AnySupport]:
    """Expand each query's support as :func:`expand`; queries keep sharing the same object."""
    expanded = {id(part): expand(store, part) for part in {id(p): p for p in parts}.values()}
    return [expanded[id(part)] for part in parts]


def expand(store: ImageStore, part: AnySupport) -> AnySupport:
    """Expand a support into rows of the shard; empty for a class that the shard lacks."""
    if not isinstance(part, RuleSupport):
        return part
    present = part.label is None or part.label in store.class_counts
    return Support(part.rows_in(store.rows_of(part.label) if present else np.empty(0, np.int64)))


@dataclass(frozen=True)
class Borders:
    """The range of rows and the class counts of each shard."""

    sizes: Sequence[int]  # number of images of each shard
    counts: Sequence[dict[int, int]]  # number of images per class in each shard; empty unlabelled

    @property
    def first_rows(self) -> list[int]:
        """(S,) row of each shard's first image."""
        return [0, *accumulate(self.sizes)][:-1]

    def class_sizes(self, label: int | None) -> list[int]:
        """(S,) number of images of a class in each shard; of all classes for None."""
        if label is None:
            return list(self.sizes)
        return [counts.get(label, 0) for counts in self.counts]

    def parts(self, supports: Sequence[AnySupport]) -> list[list[AnySupport]]:
        """For each shard, its part of every query's support; shared supports are cut once."""
        cut = {id(support): self.cut(support) for support, _ in grouped(supports)}
        by_query = [cut[id(support)] for support in supports]
        return [[parts[shard] for parts in by_query] for shard in range(len(self.sizes))]

    def cut(self, support: AnySupport) -> Sequence[AnySupport]:
        """Each shard's part of one support."""
        if isinstance(support, RuleSupport):
            offsets = [0, *accumulate(self.class_sizes(support.label))][:-1]
            return [replace(support, listing=_no_rows, offset=offset) for offset in offsets]
        if isinstance(support, TiledSupport):
            tiles = [self._cut_rows(tile) for tile in support.tiles]
            return [TiledSupport(support.side, of_shard) for of_shard in zip(*tiles, strict=True)]
        return self._cut_rows(support)

    def _cut_rows(self, support: Support) -> list[Support]:
        support = support.at(np.argsort(support.rows, kind="stable"))  # a user's may be unsorted
        borders = [*np.searchsorted(support.rows, self.first_rows), len(support.rows)]
        weights = support.log_weights
        return [
            Support(support.rows[a:b] - first, None if weights is None else weights[..., a:b])
            for a, b, first in zip(borders, borders[1:], self.first_rows, strict=False)
        ]


def _no_rows(support: RuleSupport) -> I64:
    """Replaces the driver's function that lists rows, which cannot be pickled."""
    raise ClusterError("cluster: a shard can list only its own part of a support")
