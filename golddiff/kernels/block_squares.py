"""Squared differences summed over small blocks of pixels, and those weighed for each tile.

Images go through 64 at a time and side by side, as in the masked kernel; what is made of them for
the queries never leaves the processor's caches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from golddiff.kernels.gather import BLOCK, gather, places, runs
from golddiff.kernels.lanes import LANES, empty_numbers, load, spread, store
from golddiff.kernels.stored import Stored
from golddiff.support import OfChannel, as_image, tile_of_each
from golddiff.system.numbers import F32, I64

SIDE = 4  # of a block in pixels


def block_of_each(shape: tuple[int, ...]) -> I64:
    """The block that each value (D,) lies in."""
    return tile_of_each(as_image(shape), OfChannel(SIDE))


@dataclass(frozen=True)
class BlockWeights:
    """How blocks are weighed for each of some tiles."""

    # Input values that are read, for :func:`golddiff.kernels.gather.gather`
    columns: I64
    inputs: I64  # (D,) places in ``columns`` of the values, block by block
    values: I64  # (D,) the values themselves, in the same order
    ends: I64  # (blocks + 1,) where each block's values begin and end
    used: I64  # blocks that a tile sees anything of, tile by tile
    tiles: I64  # (T + 1,) where each tile's begin and end
    shares: F32  # (used,) what the tile sees of them

    @classmethod
    def of(cls, block: I64, shares: F32) -> BlockWeights:
        """For values (D,) that lie in these blocks, and shares (T, blocks)."""
        columns = runs(np.arange(len(block)), len(block))
        values = np.argsort(block, kind="stable")
        tile, used = np.nonzero(shares)
        return cls(
            columns,
            places(columns, values),
            values,
            np.searchsorted(block[values], np.arange(shares.shape[1] + 1)),
            used,
            np.searchsorted(tile, np.arange(len(shares) + 1)),
            shares[tile, used],
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
    flat, rows, x, scale, offset, columns, inputs, values, ends, used, tiles, shares, out, begin
):  # fmt: skip
    stored = np.zeros(len(columns) * BLOCK, flat.dtype)
    squares = empty_numbers(len(ends) * BLOCK)
    scales = spread(scale)
    n, made = out.shape[2], out.ravel()
    for first in range(0, len(rows), BLOCK):
        gather(flat, rows, first, columns, stored)
        for query in range(len(out)):
            _squares(stored, x[query], inputs, values, ends, scales, offset, squares)
            for tile in range(len(tiles) - 1):
                a = b = c = e = spread(np.float32(0.0))
                for k in range(tiles[tile], tiles[tile + 1]):
                    at, share = used[k] * BLOCK, spread(shares[k])
                    a = a + share * load(squares, at)
                    b = b + share * load(squares, at + LANES)
                    c = c + share * load(squares, at + 2 * LANES)
                    e = e + share * load(squares, at + 3 * LANES)
                at = (query * out.shape[1] + tile) * n + begin + first
                store(made, at, a)
                store(made, at + LANES, b)
                store(made, at + 2 * LANES, c)
                store(made, at + 3 * LANES, e)


def block_distances(
    stored: Stored, rows: I64, x: F32, block_weights: BlockWeights, out: F32, begin: int
) -> None:
    """Write sum_b shares[t, b] sum_{n in b} (x_qn - x_in)^2 to out[q, t, begin + i].

    ``out`` (Q, T, n) is contiguous, ``begin`` and n multiples of 64
    (:func:`golddiff.kernels.gather.padded`); where ``rows`` end within 64 images, those behind them
    are written to as well.
    """
    w = block_weights
    _block_distances(
        stored.flat, rows, x, *stored.scaling,
        w.columns, w.inputs, w.values, w.ends, w.used, w.tiles, w.shares, out, begin,
    )  # fmt: skip
