"""How far every image is from a query, as each tile of outputs sees it, block by block.

A tile's mean logit is -sum_n R_n (x_n - x_in)^2 / (2 sigma^2), with R_n the share of the tile's
masks that hold input n. R varies slowly from pixel to pixel; with its mean over blocks of pixels
the sum is a product of small matrices of the blocks' squared differences. A few principal
coordinates of whole images take less, but the query's noise in what they lack turns the order
round: at 3 x 64 x 64 by logits of 2 and more at sigma 12 and below.

Every number is made by a compiled loop of its own with a fixed order of summation: it depends on
the image and the query alone, not on the batch, the threads or the processor's matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from golddiff.kernels.block_squares import BlockWeights, block_distances, block_of_each
from golddiff.kernels.byte_distances import QuantizedQueries, byte_distances
from golddiff.kernels.gather import padded
from golddiff.kernels.stored import Stored
from golddiff.store.images import ImageStore
from golddiff.support import Side
from golddiff.supports.index.image_index import Index
from golddiff.system.numbers import F32, I64
from golddiff.system.parallel import for_each

BYTES_AT_ONCE = 1.5e6  # of images that a thread compares


@dataclass(frozen=True, eq=False)
class TileBlocks:
    """Squared differences in blocks of 4x4 pixels, times each tile's share of them."""

    block_weights: BlockWeights  # of the blocks, for each of T tiles
    side: Side | None = None  # of the tiles; None: the whole image is one

    @classmethod
    def of(cls, shape: tuple[int, ...], relevance: F32, side: Side | None = None) -> TileBlocks:
        """For images of a shape and relevance (T, D), shares R in [0, 1]."""
        block = block_of_each(shape)
        size = np.bincount(block)
        shares = [np.bincount(block, tile, len(size)) / size for tile in relevance]
        return cls(BlockWeights.of(block, np.stack(shares).astype(np.float32)), side)

    def distances(self, store: ImageStore, x: F32, rows: I64) -> F32:
        """(Q, T, n) of queries (Q, D) to images (n,)."""
        return _compared(store.stored, rows, x, self.block_weights)


@dataclass(frozen=True)
class KeptBlocks:
    """The same of the numbers that an index keeps of 8x8 pixels: for sets too large to read.

    With P the rows of all blocks, only |P x - P x_i|^2 is compared and nothing of the rest r: what
    an image weighs over one without a rest, exp((|r|^2 - |r - r_i|^2) / (2 sigma^2)), has
    expectation 1 over queries whose rest is noise of that sigma in every direction.
    """

    index: Index  # of the store
    block_weights: BlockWeights  # of the blocks, for each of T tiles
    side: Side | None = None  # of the tiles; None: the whole image is one

    @classmethod
    def of(cls, index: Index, relevance: F32, side: Side | None = None) -> KeptBlocks:
        """For relevance (T, D), shares R in [0, 1]."""
        columns, numbers = index.blocks.columns, len(index.blocks.basis)
        shares = relevance[:, columns].mean(axis=2).astype(np.float32)
        block_weights = BlockWeights.of(np.repeat(np.arange(len(columns)), numbers), shares)
        return cls(index, block_weights, side)

    def distances(self, store: ImageStore, x: F32, rows: I64) -> F32:
        """(Q, T, n) of queries (Q, D) to images (n,)."""
        projected = self.index.blocks.project(x)
        return _compared(self.index.stored, rows, projected, self.block_weights)


@dataclass(frozen=True)
class KeptNumbers:
    """|P x - P x_i|^2 for the whole image, of the numbers that an index keeps."""

    index: Index  # of the store
    side = None

    def distances(self, store: ImageStore, x: F32, rows: I64) -> F32:
        """(Q, 1, n) of queries (Q, D) to images (n,)."""
        kept, queries = self.index.stored, QuantizedQueries.of(self.index.blocks.project(x))
        out = np.empty((len(x), len(rows)), np.float32)
        _in_parts(kept, rows, partial(byte_distances, queries=queries, out=out))
        return out[:, None]


def _compared(stored: Stored, rows: I64, x: F32, block_weights: BlockWeights) -> F32:
    """:func:`block_distances` of a store's array to queries, (Q, T, n), threads side by side."""
    tiles = len(block_weights.tiles) - 1
    out = np.empty((len(x), tiles, padded(len(rows))), np.float32)
    _in_parts(stored, rows, partial(block_distances, x=x, block_weights=block_weights, out=out))
    return out[:, :, : len(rows)]


def _in_parts(stored: Stored, rows: I64, compare: Callable[..., None]) -> None:
    """Call ``compare(images in memory, rows of them, begin=place)``, threads side by side."""
    each = stored.flat[:1].nbytes
    size = padded(max(1, int(BYTES_AT_ONCE // each)))

    def one(begin: int) -> None:
        with stored.resident(rows[begin : begin + size]) as (here, places):
            compare(here, places, begin=begin)

    for_each(one, range(0, len(rows), size))
