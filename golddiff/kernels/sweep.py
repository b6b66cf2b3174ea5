"""Products of a few vectors with some of every image's coordinates, a byte each.

Coordinates lie block by block: of 64 images the first coordinate, then the second. So a few of the
first ones can be read without the others, in the order they lie in.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.gather import BLOCK
from golddiff.kernels.lanes import LANES, load, load_stored, spread, store
from golddiff.kernels.products import padded
from golddiff.parallel import in_order

MIDDLE = 128  # what is added to a number of -127..127, so that it is read without a sign
IMAGES_PER_TASK = 1 << 17


@njit(nogil=True, cache=True)
def _swept(blocks, own, vectors, start, stop, out):  # type: ignore[no-untyped-def]
    count, numbers = vectors.shape
    step, n = blocks.shape[1] * BLOCK, own.shape[1]
    stored, mine, made = blocks.ravel(), own.ravel(), out.ravel()
    for i in range(start, stop, BLOCK):
        base = i // BLOCK * step
        for q in range(0, count, 2):
            u = min(q + 1, count - 1)  # an odd one out is done twice, from what it was
            at, beside = q % len(own) * n + i, u % len(own) * n + i
            a, b = load(mine, at), load(mine, at + LANES)
            c, d = load(mine, at + 2 * LANES), load(mine, at + 3 * LANES)
            e, f = load(mine, beside), load(mine, beside + LANES)
            g, h = load(mine, beside + 2 * LANES), load(mine, beside + 3 * LANES)
            for r in range(numbers):
                at = base + r * BLOCK
                w, x = load_stored(stored, at), load_stored(stored, at + LANES)
                y, z = load_stored(stored, at + 2 * LANES), load_stored(stored, at + 3 * LANES)
                s, t = spread(vectors[q, r]), spread(vectors[u, r])
                a, b, c, d = a - s * w, b - s * x, c - s * y, d - s * z
                e, f, g, h = e - t * w, f - t * x, g - t * y, h - t * z
            at = q * n + i
            store(made, at, a)
            store(made, at + LANES, b)
            store(made, at + 2 * LANES, c)
            store(made, at + 3 * LANES, d)
            at = u * n + i
            store(made, at, e)
            store(made, at + LANES, f)
            store(made, at + 2 * LANES, g)
            store(made, at + 3 * LANES, h)


def blocked(z: NDArray[np.int8]) -> NDArray[np.uint8]:
    """Coordinates (n, R) of some images, n a multiple of 64, as they lie here, (n / 64, R, 64)."""
    moved = (z.astype(np.int16) + MIDDLE).astype(np.uint8)
    made: NDArray[np.uint8] = np.ascontiguousarray(
        moved.reshape(len(z) // BLOCK, BLOCK, z.shape[1]).transpose(0, 2, 1)
    )
    return made


def swept(
    first: NDArray[np.uint8],
    others: NDArray[np.uint8],
    own: NDArray[np.float32],
    vectors: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write own_i - v . (z_i + 128) of every image i and vector v.

    Args:
        first: (n / 64, R, 64) the first coordinates; see :func:`blocked`.
        others: (n / 64, S, 64) further ones.
        own: (n,), n a multiple of 64.
        vectors: (Q, r) v, r at most R + S: of the first r coordinates.
        out: (Q, n).
    """
    some = first.shape[1]
    before = own[None]

    def task(start: int) -> None:
        limits = start, min(start + IMAGES_PER_TASK, len(own))
        _swept(first, before, vectors[:, :some], *limits, out)
        if vectors.shape[1] > some:
            _swept(others, out, vectors[:, some:], *limits, out)

    for _ in in_order(task, range(0, len(own), IMAGES_PER_TASK)):
        pass


__all__ = ["MIDDLE", "blocked", "padded", "swept"]
