"""Products of a few vectors with a row of numbers for each image, images side by side.

A threaded matrix product makes all its threads wait for the slowest, which on a machine with other
work costs more than the product. Here each thread takes its own images.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.lanes import LANES, load, spread, store
from golddiff.parallel import in_order

BLOCK = 4 * LANES
WORK_PER_TASK = 1 << 22  # fewer products are done before a second thread would start


@njit(nogil=True, cache=True)
def _less_twice_the_products(own, rows, vectors, start, stop, out):  # type: ignore[no-untyped-def]
    count, coordinates = vectors.shape
    n = rows.shape[1]
    numbers, mine, made = rows.ravel(), own.ravel(), out.ravel()
    for i in range(start, stop, BLOCK):
        for t in range(0, count, 2):
            u = min(t + 1, count - 1)  # an odd one out is done twice
            a, b, c, d = (
                load(mine, t * n + i),
                load(mine, t * n + i + LANES),
                load(mine, t * n + i + 2 * LANES),
                load(mine, t * n + i + 3 * LANES),
            )
            e, f, g, h = (
                load(mine, u * n + i),
                load(mine, u * n + i + LANES),
                load(mine, u * n + i + 2 * LANES),
                load(mine, u * n + i + 3 * LANES),
            )
            for r in range(coordinates):
                at = r * n + i
                w, x = load(numbers, at), load(numbers, at + LANES)
                y, z = load(numbers, at + 2 * LANES), load(numbers, at + 3 * LANES)
                p = spread(np.float32(-2.0) * vectors[t, r])
                q = spread(np.float32(-2.0) * vectors[u, r])
                a, b, c, d = a + p * w, b + p * x, c + p * y, d + p * z
                e, f, g, h = e + q * w, f + q * x, g + q * y, h + q * z
            store(made, t * n + i, a)
            store(made, t * n + i + LANES, b)
            store(made, t * n + i + 2 * LANES, c)
            store(made, t * n + i + 3 * LANES, d)
            store(made, u * n + i, e)
            store(made, u * n + i + LANES, f)
            store(made, u * n + i + 2 * LANES, g)
            store(made, u * n + i + 3 * LANES, h)


def products(vectors: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """sum_r vectors[t, r] rows[r, i], (T, n), by the calling thread alone.

    Args:
        vectors: (T, r) contiguous.
        rows: (r, n).
    """
    n = rows.shape[1]
    whole = rows
    if n != padded(n):
        whole = np.zeros((len(rows), padded(n)), np.float32)
        whole[:, :n] = rows
    none = np.zeros((len(vectors), whole.shape[1]), np.float32)
    out = np.empty_like(none)
    halves = np.float32(-0.5) * vectors
    _less_twice_the_products(none, np.ascontiguousarray(whole), halves, 0, whole.shape[1], out)
    return out[:, :n]


def padded(n: int) -> int:
    """``n`` rounded up to whole blocks of images."""
    return -(-n // BLOCK) * BLOCK


def less_twice_the_products(
    own: NDArray[np.float32], rows: NDArray[np.float32], vectors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """own[t, i] - 2 sum_r vectors[t, r] rows[r, i], (T, n).

    With own the squares of what is seen of image i, these are squared distances less a constant.

    Args:
        own: (T, n) contiguous float32, n a multiple of 64 (:func:`padded`).
        rows: (r, n) contiguous.
        vectors: (T, r) contiguous.
    """
    n = own.shape[1]
    out = np.empty_like(own)
    images = padded(1 + WORK_PER_TASK // max(1, vectors.size))

    def task(start: int) -> None:
        stop = min(start + images, n)
        _less_twice_the_products(own, rows, vectors, start, stop, out)

    for _ in in_order(task, range(0, n, images)):
        pass
    return out
