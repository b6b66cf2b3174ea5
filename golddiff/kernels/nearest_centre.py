"""Which of many centres is nearest to each of many points, points side by side.

A matrix of all distances would be written and read again only to find each row's smallest.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.gather import BLOCK
from golddiff.kernels.lanes import LANES, larger, load, spread, store

GROUP = 16  # centres whose best is told before which of them it was; even
NOTHING = np.float32(-3e38)


@njit(nogil=True, cache=True)
def _nearest(points, centres, half, out):  # type: ignore[no-untyped-def]
    r, n = points.shape
    numbers = points.ravel()
    count = len(centres)
    peak, best = np.empty(BLOCK, np.float32), np.empty(BLOCK, np.float32)
    group = np.empty(BLOCK, np.int64)
    for i in range(0, n, BLOCK):
        best[:] = NOTHING
        group[:] = 0
        for first in range(0, count, GROUP):
            a = b = c = d = spread(NOTHING)
            for k in range(first, min(first + GROUP, count), 2):
                other = min(k + 1, count - 1)  # an odd one out is done twice
                e = f = g = h = spread(-half[k])
                o = p = q = s = spread(-half[other])
                for j in range(r):
                    at = j * n + i
                    w, x = load(numbers, at), load(numbers, at + LANES)
                    y, z = load(numbers, at + 2 * LANES), load(numbers, at + 3 * LANES)
                    u, v = spread(centres[k, j]), spread(centres[other, j])
                    e, f, g, h = e + u * w, f + u * x, g + u * y, h + u * z
                    o, p, q, s = o + v * w, p + v * x, q + v * y, s + v * z
                a, b = larger(a, larger(e, o)), larger(b, larger(f, p))
                c, d = larger(c, larger(g, q)), larger(d, larger(h, s))
            store(peak, 0, a)
            store(peak, LANES, b)
            store(peak, 2 * LANES, c)
            store(peak, 3 * LANES, d)
            for lane in range(BLOCK):
                if peak[lane] > best[lane]:
                    best[lane] = peak[lane]
                    group[lane] = first
        for lane in range(BLOCK):
            most = NOTHING
            for k in range(group[lane], min(group[lane] + GROUP, count)):
                dot = -half[k]
                for j in range(r):
                    dot += centres[k, j] * points[j, i + lane]
                if dot > most:
                    most = dot
                    out[i + lane] = k


def nearest_centre(points: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.int64]:
    """The nearest centre's number for each point, (n,).

    Of centres as near as float32 tells, one of them.

    Args:
        points: (r, n) contiguous, n a multiple of 64 (:func:`golddiff.kernels.products.padded`).
        centres: (C, r) contiguous, C of 1 or more, finite.
    """
    out = np.zeros(points.shape[1], np.int64)
    half = (np.square(centres, dtype=np.float64).sum(axis=1) / 2).astype(np.float32)
    _nearest(points, centres, half, out)
    return out
