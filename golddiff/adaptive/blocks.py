"""Every training image's mean logit over a tile from all of its pixels, block by block.

A tile's mean logit is -sum_n R_n (x_n - x_in)^2 / (2 sigma^2), with R_n the share of the tile's
masks that hold input n. R varies slowly from pixel to pixel; with its mean over blocks of 4x4
pixels the sum is a product of small matrices of the blocks' squared differences. A few principal
coordinates (:mod:`golddiff.adaptive.ranking`) take less, but the query's noise in what they lack
turns the order round: at 3 x 64 x 64 by logits of 2 and more at sigma 12 and below.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.comparing import ByBlocks
from golddiff.kernels.aligned import empty
from golddiff.kernels.block_squares import Weighing, block_distances, block_grid, block_of_each
from golddiff.kernels.products import padded
from golddiff.store.images import ImageStore
from golddiff.store.residency import at_hand
from golddiff.system.parallel import for_each

IMAGES_AT_ONCE = 512


class BlockRanking:
    """Approximate distances of some images to queries, as each tile sees them.

    Args:
        store: the training set, images (C, H, W).
        relevance: (T, D) shares R in [0, 1].
        rows: (n,) the images to rank.
    """

    def __init__(
        self, store: ImageStore, relevance: NDArray[np.float32], rows: NDArray[np.int64]
    ) -> None:
        self.rows = rows
        self._store = store
        block = block_of_each(store.shape)
        size = np.bincount(block)
        self._shares = np.stack(
            [np.bincount(block, shares, len(size)) / size for shares in relevance]
        ).astype(np.float32)
        self._weighing = Weighing.of(store.shape, self._shares)
        self.comparing = comparing_blocks(store.shape)

    @property
    def tiles(self) -> int:
        """How many tiles rank the images."""
        return len(self._shares)

    def distances(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Distances (Q, T, n) of queries (Q, D); of some tiles only."""
        store, weighing = self._store, self._weighing
        if tiles is not None:
            weighing = Weighing.of(store.shape, self._shares[list(tiles)])
        count = self.tiles if tiles is None else len(tiles)
        out = empty((len(x), count, padded(len(self.rows))))

        def compare(start: int) -> None:
            with at_hand(store.flat, self.rows[start : start + IMAGES_AT_ONCE]) as (flat, places):
                block_distances(flat, places, x, weighing, store.scale, store.offset, out, start)

        for_each(compare, range(0, len(self.rows), IMAGES_AT_ONCE))
        return out[:, :, : len(self.rows)]


def comparing_blocks(shape: tuple[int, ...]) -> ByBlocks:
    """What it takes over images of a shape (C, H, W)."""
    return ByBlocks(int(np.prod(shape)), int(np.prod(block_grid(shape))))
