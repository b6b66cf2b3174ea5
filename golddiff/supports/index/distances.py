"""Metrics that rank images for each tile of outputs, by blocks of pixels.

A tile's mean logit is -sum_n R_n (x_n - x_in)^2 / (2 sigma^2), with R_n the share of the tile's
masks that contain input n. R varies slowly, so its mean over each block weighs the block's sum of
squared differences. A few principal coordinates of whole images would be cheaper, but the query's
noise outside them changes the order: by logits of 2 and more at sigma 12 and below, on 3 x 64 x 64.

Compiled loops sum in a fixed order, so that a distance depends only on the image and the query, not
on the batch, the threads or the processor's matrix products.
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

BYTES_AT_ONCE = 1.5e6  # size of the images that a thread compares at a time


@dataclass(frozen=True, eq=False)
class TileBlocks:
    """Squared differences summed over blocks of 4x4 pixels, weighted by each tile's relevance."""

    block_weights: BlockWeights  # weights of the blocks for each of T tiles
    side: Side | None = None  # side of the tiles; None: a single tile of the whole image

    @classmethod
    def of(cls, shape: tuple[int, ...], relevance: F32, side: Side | None = None) -> TileBlocks:
        """From the shape of images and the relevance R (T, D), in [0, 1]."""
        block = block_of_each(shape)
        size = np.bincount(block)
        means = [np.bincount(block, tile, len(size)) / size for tile in relevance]
        return cls(BlockWeights.of(block, np.stack(means).astype(np.float32)), side)

    def distances(self, store: ImageStore, x: F32, rows: I64) -> F32:
        """(Q, T, n); see :class:`golddiff.store.nearest.Metric`."""
        return _compared(store.stored, rows, x, self.block_weights)


@dataclass(frozen=True)
class IndexedBlocks:
    """Like :class:`TileBlocks`, on the index's 8x8 blocks, for sets too large to read.

    Only projections P x are compared. The residuals r = x - P x are ignored: they would multiply an
    image's weight by exp((|r|^2 - |r - r_i|^2) / (2 sigma^2)), whose mean is 1 over queries whose
    residual is noise of that sigma.
    """

    index: Index  # index of the store
    block_weights: BlockWeights  # weights of the blocks for each of T tiles
    side: Side | None = None  # side of the tiles; None: a single tile of the whole image

    @classmethod
    def of(cls, index: Index, relevance: F32, side: Side | None = None) -> IndexedBlocks:
        """From the relevance R (T, D), in [0, 1]."""
        columns, numbers = index.blocks.columns, len(index.blocks.basis)
        means = relevance[:, columns].mean(axis=2).astype(np.float32)
        block_weights = BlockWeights.of(np.repeat(np.arange(len(columns)), numbers), means)
        return cls(index, block_weights, side)

    def distances(self, store: ImageStore, x: F32, rows: I64) -> F32:
        """(Q, T, n); see :class:`golddiff.store.nearest.Metric`."""
        projected = self.index.blocks.project(x)
        return _compared(self.index.stored, rows, projected, self.block_weights)


@dataclass(frozen=True)
class IndexedNumbers:
    """|P x - P x_i|^2 of whole images, from the index."""

    index: Index  # index of the store
    side = None

    def distances(self, store: ImageStore, x: F32, rows: I64) -> F32:
        """(Q, 1, n); see :class:`golddiff.store.nearest.Metric`."""
        queries = QuantizedQueries.of(self.index.blocks.project(x))
        out = np.empty((len(x), len(rows)), np.float32)
        _in_parallel(self.index.stored, rows, partial(byte_distances, queries=queries, out=out))
        return out[:, None]


def _compared(stored: Stored, rows: I64, x: F32, block_weights: BlockWeights) -> F32:
    """:func:`block_distances` of images to queries (Q, K), (Q, T, n), computed in parallel."""
    tiles = len(block_weights.tiles) - 1
    out = np.empty((len(x), tiles, padded(len(rows))), np.float32)
    _in_parallel(stored, rows, partial(block_distances, x=x, block_weights=block_weights, out=out))
    return out[:, :, : len(rows)]


def _in_parallel(stored: Stored, rows: I64, compare: Callable[..., None]) -> None:
    """Call ``compare(loaded images, their rows, begin=...)`` for consecutive parts of ``rows``."""
    size = padded(max(1, int(BYTES_AT_ONCE // stored.flat[:1].nbytes)))

    def compare_part(begin: int) -> None:
        with stored.resident(rows[begin : begin + size]) as (loaded, local_rows):
            compare(loaded, local_rows, begin=begin)

    for_each(compare_part, range(0, len(rows), size))
