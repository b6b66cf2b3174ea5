"""Products of a few vectors with a row of numbers for each image, images side by side.

A threaded matrix product makes all its threads wait for the slowest, which on a machine with other
work costs more than the product. Here each thread takes its own images.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.aligned import empty
from golddiff.kernels.gather import BLOCK, padded
from golddiff.kernels.lanes import LANES, load, load_stored, spread, store
from golddiff.system.parallel import for_each

WORK_PER_TASK = 1 << 22  # fewer products are done before a second thread would start


@njit(nogil=True, cache=True)
def sums_of_products(  # type: ignore[no-untyped-def]
    own, rows, block, stride, vectors, start, stop, out
):
    """Write own[q % tiles, i] + sum_r vectors[q, r] rows_r, images start to before stop.

    A coordinate of 64 images lies together: the first ``block`` numbers after those of the images
    before, the next ones ``stride`` after each other. They are float32 or uint8.
    """
    count, coordinates = vectors.shape
    tiles, n = own.shape
    numbers, mine, made = rows.ravel(), own.ravel(), out.ravel()
    for i in range(start, stop, BLOCK):
        first = i // BLOCK * block
        for t in range(0, count, 2):
            u = min(t + 1, count - 1)  # an odd one out is done twice
            at, beside = t % tiles * n + i, u % tiles * n + i
            a, b, c, d = (
                load(mine, at),
                load(mine, at + LANES),
                load(mine, at + 2 * LANES),
                load(mine, at + 3 * LANES),
            )
            e, f, g, h = (
                load(mine, beside),
                load(mine, beside + LANES),
                load(mine, beside + 2 * LANES),
                load(mine, beside + 3 * LANES),
            )
            for r in range(coordinates):
                at = first + r * stride
                w, x = load_stored(numbers, at), load_stored(numbers, at + LANES)
                y, z = load_stored(numbers, at + 2 * LANES), load_stored(numbers, at + 3 * LANES)
                p, q = spread(vectors[t, r]), spread(vectors[u, r])
                a, b, c, d = a + p * w, b + p * x, c + p * y, d + p * z
                e, f, g, h = e + q * w, f + q * x, g + q * y, h + q * z
            at, beside = t * n + i, u * n + i
            store(made, at, a)
            store(made, at + LANES, b)
            store(made, at + 2 * LANES, c)
            store(made, at + 3 * LANES, d)
            store(made, beside, e)
            store(made, beside + LANES, f)
            store(made, beside + 2 * LANES, g)
            store(made, beside + 3 * LANES, h)


def less_twice_the_products(
    own: NDArray[np.float32], rows: NDArray[np.float32], vectors: NDArray[np.float32]
) -> NDArray[np.float32]:
    """own[t, i] - 2 sum_r vectors[q, t, r] rows[r, i], (Q, T, n).

    With own the squares of what is seen of image i, these are squared distances less a constant.
    The rows are read once for all queries.

    Args:
        own: (T, n) contiguous float32, n a multiple of 64 (:func:`padded`).
        rows: (r, n) contiguous.
        vectors: (Q, T, r).
    """
    queries, (tiles, n) = len(vectors), own.shape
    doubled = np.float32(-2.0) * vectors.reshape(queries * tiles, -1)
    out = empty((queries * tiles, n))
    images = padded(1 + WORK_PER_TASK // max(1, vectors.size))

    def task(start: int) -> None:
        sums_of_products(own, rows, BLOCK, n, doubled, start, min(start + images, n), out)

    for_each(task, range(0, n, images))
    return out.reshape(queries, tiles, n)
