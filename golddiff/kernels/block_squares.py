"""Squared differences summed over small blocks of pixels, then weighted for each tile.

Like the masked kernel, it processes 64 images side by side, with intermediate results in cache.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from golddiff.kernels.gather import BLOCK, gather, positions_in, runs
from golddiff.kernels.lanes import LANES, empty_numbers, load, spread, store
from golddiff.kernels.stored import Stored
from golddiff.support import OfChannel, as_image, tile_of_each
from golddiff.system.numbers import F32, I64

SIDE = 4  # side of a block in pixels


def block_of_each(shape: tuple[int, ...]) -> I64:
    """The block of each image value, (D,)."""
    return tile_of_each(as_image(shape), OfChannel(SIDE))


@dataclass(frozen=True)
class BlockWeights:
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
            used,
            np.searchsorted(tile, np.arange(len(weights) + 1)),
            weights[tile, used],
        )


@njit(nogil=True, cache=True)
def _squares(stored, x, inputs, values, ends, scales, offset, squares):  # type: ignore[no-untyped-def]
    for block in range(len(ends) - 1):
        a = b = c = e = spread(np.float32(0.0))
        for k in range(ends[block], ends[block + 1]):
            at, o = inputs[k] * BLOCK, spread(offset - x[values[k]])
            p = load(stored, at) * scales + o
            q = load(stored, at + LANES) * scales + o
            r = load(stored, at + 2 * LANES) * scales + o
            s = load(stored, at + 3 * LANES) * scales + o
            a, b, c, e = a + p * p, b + q * q, c + r * r, e + s * s
        at = block * BLOCK
        store(squares, at, a)
        store(squares, at + LANES, b)
        store(squares, at + 2 * LANES, c)
        store(squares, at + 3 * LANES, e)


@njit(nogil=True, cache=True)
def _block_distances(  # type: ignore[no-untyped-def]
    flat, rows, x, scale, offset, columns, inputs, values, ends, used, tiles, weights, out, begin
):  # fmt: skip
    stored = np.zeros(len(columns) * BLOCK, flat.dtype)
    squares = empty_numbers(len(ends) * BLOCK)
    scales = spread(scale)
    n, flat_out = out.shape[2], out.ravel()
    for first in range(0, len(rows), BLOCK):
        gather(flat, rows, first, columns, stored)
        for query in range(len(out)):
            _squares(stored, x[query], inputs, values, ends, scales, offset, squares)
            for tile in range(len(tiles) - 1):
                a = b = c = e = spread(np.float32(0.0))
                for k in range(tiles[tile], tiles[tile + 1]):
                    at, weight = used[k] * BLOCK, spread(weights[k])
                    a = a + weight * load(squares, at)
                    b = b + weight * load(squares, at + LANES)
                    c = c + weight * load(squares, at + 2 * LANES)
                    e = e + weight * load(squares, at + 3 * LANES)
                at = (query * out.shape[1] + tile) * n + begin + first
                store(flat_out, at, a)
                store(flat_out, at + LANES, b)
                store(flat_out, at + 2 * LANES, c)
                store(flat_out, at + 3 * LANES, e)


def block_distances(
    stored: Stored, rows: I64, x: F32, block_weights: BlockWeights, out: F32, begin: int
) -> None:
    """Write sum_b weights[t, b] sum_{n in b} (x_qn - x_in)^2 to out[q, t, begin + i].

    ``out`` (Q, T, n) is contiguous; ``begin`` and n are multiples of 64
    (:func:`golddiff.kernels.gather.padded`). Whole groups of 64 images are written, also where the
    last rows fill only a part of one.
    """
    w = block_weights
    _block_distances(
        stored.flat, rows, x, *stored.scaling,
        w.columns, w.inputs, w.values, w.ends, w.used, w.tiles, w.weights, out, begin,
    )  # fmt: skip
