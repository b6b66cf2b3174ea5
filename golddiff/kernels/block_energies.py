"""Squared differences of images and a query, block by block, from numbers of a byte each.

Sixty-four images go through side by side, as in :mod:`golddiff.kernels.pca_cpu`: an image's numbers
are too few in a block to fill a register.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.gather import BLOCK, gather
from golddiff.kernels.lanes import LANES, load_stored, spread, store
from golddiff.kernels.sweep import MIDDLE

SIGN = np.uint8(MIDDLE)


@njit(nogil=True, cache=True)
def _energies(flat, start, count, columns, goal, units, each, out):  # type: ignore[no-untyped-def]
    width = len(columns)
    stored = np.zeros(width * BLOCK, np.uint8)
    rows = np.empty(BLOCK, np.int64)
    numbers = out.ravel()
    length = out.shape[1]
    nothing = spread(np.float32(0.0))
    for first in range(0, count, BLOCK):
        for i in range(BLOCK):  # places without an image repeat the last one
            rows[i] = start + min(first + i, count - 1)
        gather(flat, rows, columns, stored)
        for n in range(width * BLOCK):
            stored[n] ^= SIGN
        for b in range(width // each):
            s, t, u, v = nothing, nothing, nothing, nothing
            for m in range(b * each, (b + 1) * each):
                unit, wanted = spread(units[m]), spread(goal[m])
                at = m * BLOCK
                e = load_stored(stored, at) * unit - wanted
                f = load_stored(stored, at + LANES) * unit - wanted
                g = load_stored(stored, at + 2 * LANES) * unit - wanted
                h = load_stored(stored, at + 3 * LANES) * unit - wanted
                s, t, u, v = s + e * e, t + f * f, u + g * g, v + h * h
            at = b * length + first
            store(numbers, at, s)
            store(numbers, at + LANES, t)
            store(numbers, at + 2 * LANES, u)
            store(numbers, at + 3 * LANES, v)


def block_energies(
    flat: NDArray[np.int8],
    start: int,
    count: int,
    goal: NDArray[np.float32],
    units: NDArray[np.float32],
    each: int,
) -> NDArray[np.float32]:
    """|unit z_b - goal_b|^2 of images ``start`` on, (B, n), n >= count a multiple of 64.

    Args:
        flat: (N, B each) z.
        start: first image.
        count: images, at least 1; what comes after them repeats the last one.
        goal: (B each,).
        units: (B each,).
        each: numbers of a block.
    """
    width = flat.shape[1]
    out = np.empty((width // each, -(-count // BLOCK) * BLOCK), np.float32)
    shifted = goal + np.float32(SIGN) * units
    _energies(flat.view(np.uint8), start, count, np.arange(width), shifted, units, each, out)
    return out
