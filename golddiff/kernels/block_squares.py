"""Squared differences summed over small blocks of pixels: an image's distance, place by place."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

SIDE = 4  # of a block in pixels

FAST = {"reassoc", "contract", "arcp", "nsz"}


def block_grid(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, rows, columns) of the blocks of images of a shape (C, H, W), ragged ones too."""
    return shape[0], -(-shape[1] // SIDE), -(-shape[2] // SIDE)


def block_of_each(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The block that each value (D,) lies in."""
    _, rows, columns = block_grid(shape)
    channel, row, column = np.unravel_index(np.arange(int(np.prod(shape))), shape)
    blocks: NDArray[np.int64] = (channel * rows + row // SIDE) * columns + column // SIDE
    return blocks


@njit(nogil=True, cache=True, fastmath=FAST)
def _block_squares(flat, rows, x, lines, width, height, scale, offset, out):  # type: ignore[no-untyped-def]
    columns = -(-width // SIDE)
    down = -(-height // SIDE)
    sums = np.zeros(columns * SIDE, np.float32)
    squares = np.empty(len(x), np.float32)
    for i in range(len(rows)):
        row = flat[rows[i]]
        for n in range(len(x)):  # all at once: short loops hardly vectorise
            difference = np.float32(row[n]) * scale + offset - x[n]
            squares[n] = difference * difference
        for block_row in range(lines // height * down):
            channel, place = block_row // down, block_row % down
            sums[:] = 0
            for y in range(place * SIDE, min((place + 1) * SIDE, height)):
                start = (channel * height + y) * width
                line = squares[start : start + width]
                for j in range(width):
                    sums[j] += line[j]
            for column in range(columns):
                at = column * SIDE
                out[block_row * columns + column, i] = (sums[at] + sums[at + 1]) + (
                    sums[at + 2] + sums[at + 3]
                )


def block_squares(
    flat: NDArray[Any],
    rows: NDArray[np.int64],
    x: NDArray[np.float32],
    shape: tuple[int, ...],
    scale: float,
    offset: float,
) -> NDArray[np.float32]:
    """Sum over each block of (x_n - x_in)^2, (blocks, k), images side by side.

    Args:
        flat: (N, D) uint8 or float32 stored values.
        rows: (k,) images.
        x: (D,) query.
        shape: (C, H, W) of the images.
        scale: stored value times this ...
        offset: ... plus this is the value compared.
    """
    channels, height, width = shape
    out = np.empty((int(np.prod(block_grid(shape))), len(rows)), np.float32)
    scaled = np.float32(scale), np.float32(offset)
    _block_squares(flat, rows, x, channels * height, width, height, *scaled, out)
    return out
