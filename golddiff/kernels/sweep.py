"""Products of a few vectors with some of every image's coordinates, a byte each.

Coordinates lie block by block: of 64 images the first coordinate, then the second. So a few of the
first ones can be read without the others, in the order they lie in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.gather import BLOCK
from golddiff.kernels.products import sums_of_products
from golddiff.system.parallel import for_each

MIDDLE = 128  # what is added to a number of -127..127, so that it is read without a sign
IMAGES_PER_TASK = 1 << 17


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
    steps = [(own[None], first, -vectors[:, :some])]
    if vectors.shape[1] > some:
        steps.append((out, others, -vectors[:, some:]))

    def task(start: int) -> None:
        stop = min(start + IMAGES_PER_TASK, len(own))
        for before, blocks, some_of_each in steps:
            size = blocks.shape[1] * BLOCK
            sums_of_products(before, blocks, size, BLOCK, some_of_each, start, stop, out)

    for_each(task, range(0, len(own), IMAGES_PER_TASK))
