"""A support whose rows lie in the shards: a step uses it without anyone listing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from golddiff.cluster.recipes import Below, Candidates, Chosen, Drawn
from golddiff.kernels.mask_tiles import Side
from golddiff.support import Support

if TYPE_CHECKING:
    from golddiff.cluster.over_shards import OverShards


@dataclass(frozen=True, eq=False)
class Batch:
    """The supports of some queries that were chosen together.

    Attributes:
        chosen: what each shard contributes.
        token: of the queries; None where the choice does not depend on them.
        images: how many each query (or tile) weighs; about, where they are drawn by weight.
    """

    chosen: Sequence[Chosen]
    token: str | None
    images: int

    @property
    def side(self) -> Side | None:
        """Side of the tiles that choose for themselves; None: the whole image chooses."""
        first = self.chosen[0]
        return first.stage.side if isinstance(first, Below | Drawn) else None

    @property
    def simple(self) -> Candidates | None:
        """The candidates, where all of them are chosen."""
        first = self.chosen[0]
        return first if isinstance(first, Candidates) else None


class Selected(Support):
    """The support of one query of a batch, or of one of its tiles.

    Reading ``rows`` fetches them from the shards.
    """

    def __init__(
        self, shards: OverShards, batch: Batch, query: int, tile: int | None = None
    ) -> None:
        named = {"shards": shards, "batch": batch, "query": query, "tile": tile}
        for name, value in named.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_fetched", [])

    shards: OverShards
    batch: Batch
    query: int
    tile: int | None
    _fetched: list[tuple[NDArray[np.int64], NDArray[np.float64] | None]]

    def fetched(self) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """Rows and log weights, brought here at the first question."""
        if not self._fetched:
            self._fetched.append(self.shards.rows(self))
        return self._fetched[0]

    @property
    def rows(self) -> NDArray[np.int64]:
        """(k,) rows of the store, ascending."""
        return self.fetched()[0]

    @property
    def log_weights(self) -> NDArray[np.float64] | None:
        """(k,) log importance weights, or None."""
        return self.fetched()[1]

    def __len__(self) -> int:
        return self.batch.images

    def __repr__(self) -> str:
        return f"Selected(about {self.batch.images:,} images in shards)"
