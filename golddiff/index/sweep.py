"""Every image's coordinates of the whole image, compared in one pass over memory.

Clusters next to a query hold few of its nearest images: of 1.28 million, by 128 coordinates, the
image that decides is among the first hundreds, but its cluster may be the thousandth. A byte a
coordinate is little enough to look at all of them: 32 of 1.28 million images in a third of a
millisecond, queries side by side.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.index.rawfiles import Lines
from golddiff.kernels.gather import BLOCK
from golddiff.kernels.products import padded
from golddiff.kernels.sweep import blocked, swept

FIRST = 32  # coordinates that rank; all of them draw
IMAGES_AT_ONCE = 1 << 16
FAR = np.float32(1e30)  # what is beyond the last image


def bytes_of(images: int, numbers: int) -> int:
    """Of the memory that a sweep over so many images takes."""
    return padded(images) * (numbers + 8) + 8 * images


class Sweep:
    """The images of a store, as the whole image's coordinates have them.

    With z = B (x - mean), what is compared is |z_i - z|^2 and nothing of the rest r: what an image
    weighs over one without a rest, exp((|r|^2 - |r - r_i|^2) / (2 sigma^2)), has expectation 1 over
    queries whose rest is noise of that sigma in every direction.

    Args:
        coordinates: (1, N, r) int8, in the index's order.
        rows: (1, N) images in that order.
        basis: (r, D) B.
        mean: (D,).
        scale: (r,) of a coordinate, in units of z.

    Attributes:
        rows: (N,) int64 images, in the order of distances.
        numbers: coordinates of an image.
    """

    def __init__(
        self,
        coordinates: Lines,
        rows: Lines,
        basis: NDArray[np.float32],
        mean: NDArray[np.float32],
        scale: NDArray[np.float32],
    ) -> None:
        self._basis, self._mean, self._scale = basis, mean, scale
        n, self.numbers = coordinates.shape[1:]
        self.first = min(FIRST, self.numbers)
        self.rows = rows[0].astype(np.int64)
        # |z_i|^2, of the first ones and of all.
        self._own = np.full((2, padded(n)), FAR, np.float32)
        made = np.empty((padded(n) // BLOCK, self.numbers, BLOCK), np.uint8)
        for start in range(0, padded(n), IMAGES_AT_ONCE):
            stop = min(start + IMAGES_AT_ONCE, n)
            z = coordinates.run(0, start, stop)
            squares = (z * scale) ** 2
            self._own[0, start:stop] = squares[:, : self.first].sum(1)
            self._own[1, start:stop] = squares.sum(1)
            z = np.pad(z, ((0, padded(len(z)) - len(z)), (0, 0)))
            made[start // BLOCK : (start + len(z)) // BLOCK] = blocked(z)
        # Apart: a pass over the first ones alone then reads memory in the order it lies in.
        self._first = np.ascontiguousarray(made[:, : self.first])
        self._others = np.ascontiguousarray(made[:, self.first :])

    @property
    def size(self) -> int:
        """Numbers of a query's distances: N, rounded up."""
        return self._own.shape[1]

    def distances(
        self, x: NDArray[np.float32], numbers: int, out: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Squared distances of coordinates to queries', less what all images share of each.

        Args:
            x: queries.
            numbers: coordinates compared: ``first`` or all.
            out: (Q, ``size``) float32, where they are written.

        Returns:
            (Q, N), of the images ``rows``: the beginning of ``out``.
        """
        # Query by query: a product of all at once rounds differently in another batch.
        goals = np.stack([self._basis[:numbers] @ (query - self._mean) for query in x])
        vectors = (2 * self._scale[:numbers] * goals).astype(np.float32)
        own = self._own[int(numbers > self.first)]
        swept(self._first, self._others, own, vectors, out)
        return out[:, : len(self.rows)]
