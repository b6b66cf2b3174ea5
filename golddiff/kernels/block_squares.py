"""Squared differences summed over small blocks of pixels, then weighted for each tile.

Like the masked kernel, it processes 64 images side by side, with intermediate results in cache.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from golddiff.kernels.gather import gather, positions_in, runs
from golddiff.kernels.lanes import BLOCK, empty_numbers, load_block, spread_block, store
from golddiff.kernels.stored import Stored
from golddiff.support import OfChannel, as_image, tile_of_each
from golddiff.system.numbers import F32, I64

SIDE = 4  # side of a block in pixels


def block_of_each(shape: tuple[int, ...]) -> I64:
    """The block of each image value, (D,)."""
    return tile_of_each(as_image(shape), OfChannel(SIDE))


class BlockWeights(NamedTuple):
    """The weights of blocks in each tile's distance, in compressed sparse rows."""

    columns: I64  # input values to read, for :func:`golddiff.kernels.gather.gather`
    inputs: I64  # (D,) positions of ``values`` in ``columns``
    values: I64  # (D,) input values, block by block
    ends: I64  # (blocks + 1,) offsets of each block's entries in ``inputs`` and ``values``
    used: I64  # (entries,) blocks of nonzero weight, tile by tile
    tiles: I64  # (T + 1,) offsets of each tile's entries in ``used``
    weights: F32  # (entries,) their weights

    @classmethod
    def of(cls, block: I64, weights: F32) -> BlockWeights:
        """From the block of each value (D,) and the weights of blocks (T, blocks)."""
        columns = runs(np.arange(len(block)), len(block))
        values = np.argsort(block, kind="stable")
        tile, used = np.nonzero(weights)
        return cls(
            columns,
            positions_in(columns, values),
            values,
            np.searchsorted(block[values], np.arange(weights.shape[1] + 1)),
            np.ascontiguousarray(used),  # so that the loop compiles once
            np.searchsorted(tile, np.arange(len(weights) + 1)),
            weights[tile, used],
        )


@njit(nogil=True, cache=True)
def _block_distances(  # type: ignore[no-untyped-def]
    flat, rows, x, scale, offset, columns, inputs, values, ends, used, tiles, weights, out, begin
):  # fmt: skip
    stored = np.zeros(len(columns) * BLOCK, flat.dtype)
    squares, zero = empty_numbers(len(ends) * BLOCK), spread_block(np.float32(0.0))
    n, flat_out = out.shape[2], out.ravel()
    for first in range(0, len(rows), BLOCK):
        gather(flat, rows, first, columns, stored)
        for query in range(len(out)):
            for block in range(len(ends) - 1):
                total = zero
                for k in range(ends[block], ends[block + 1]):
                    value = load_block(stored, inputs[k] * BLOCK)
                    difference = value * scale + (offset - x[query, values[k]])
                    total = total + difference * difference
                store(squares, block * BLOCK, total)
            for tile in range(len(tiles) - 1):
                total = zero
                for k in range(tiles[tile], tiles[tile + 1]):
                    total = total + load_block(squares, used[k] * BLOCK) * weights[k]
                store(flat_out, (query * out.shape[1] + tile) * n + begin + first, total)


def block_distances(
    stored: Stored, rows: I64, x: F32, block_weights: BlockWeights, out: F32, begin: int
) -> None:
    """Write sum_b weights[t, b] sum_{n in b} (x_qn - x_in)^2 to out[q, t, begin + i].

    ``out`` (Q, T, n) is contiguous; ``begin`` and n are multiples of 64
    (:func:`golddiff.kernels.gather.padded`). Whole groups of 64 images are written, also where the
    last rows fill only a part of one.
    """
    _block_distances(stored.flat, rows, x, *stored.scaling, *block_weights, out, begin)
