"""A support: which training images are weighed at one step, with what importance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import ArgumentError
from golddiff.kernels.mask_tiles import Side

ABSENT = -1e300  # a log weight of nothing, finite, so that differences of two are no NaN


@dataclass(frozen=True)
class Support:
    """The training images that one query (or several alike) is compared with.

    Attributes:
        rows: (k,) int64 indices into the store, ascending (store order).
        log_weights: (k,) float64 log importance weights added to the logits, or None for all 0.
            An image drawn at random with probability p stands for 1/p images: log weight -log p.
    """

    rows: NDArray[np.int64]
    log_weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def log_importance(self) -> NDArray[np.float64]:
        """The log weights (k,), zeros where there are none."""
        return np.zeros(len(self.rows)) if self.log_weights is None else self.log_weights

    def split(self, size: int) -> list[Support]:
        """Consecutive parts of at most ``size`` images, in order."""
        return [
            Support(
                self.rows[i : i + size],
                None if self.log_weights is None else self.log_weights[i : i + size],
            )
            for i in range(0, len(self.rows), size)
        ]


@dataclass(frozen=True)
class TiledSupport:
    """A support for each square tile of the outputs, for estimators that weigh pixel by pixel.

    Attributes:
        side: of the tiles, in pixels or of a channel; those at a ragged edge are smaller.
        tiles: their supports, row by row.
    """

    side: Side
    tiles: Sequence[Support]

    def __len__(self) -> int:
        """The images of the tile that has fewest."""
        return min(map(len, self.tiles))

    @property
    def rows(self) -> NDArray[np.int64]:
        """Every image that some tile weighs, ascending."""
        return np.unique(np.concatenate([tile.rows for tile in self.tiles]))

    def of_tile(self, tile: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """A tile's log importance weights of some rows, ``ABSENT`` for those it does not weigh."""
        support = self.tiles[tile]
        weights = np.full(len(rows), ABSENT)
        _, theirs, mine = np.intersect1d(rows, support.rows, return_indices=True)
        weights[theirs] = support.log_importance()[mine]
        return weights


AnySupport = Support | TiledSupport


def whole(support: AnySupport) -> Support:
    """The support, which must be one for the whole image.

    Raises:
        ArgumentError: it is one for each tile.
    """
    if isinstance(support, TiledSupport):
        raise ArgumentError("support: got one for each tile, expected one for the whole image")
    return support
