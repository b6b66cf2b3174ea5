"""Blocks of pixels by their leading principal components: an image in a sixteenth of its numbers.

What blocks of 8 x 8 pixels look like has far fewer directions than pixels: 12 of 192 hold 94 % of
the squares of photographs of 3 x 64 x 64, where averages over 4 x 4 pixels, as many numbers, hold
most of three channels' brightness three times over. One basis serves all blocks, so that
projecting costs 24 operations a pixel. The rows of all blocks together are orthonormal: distances
in them are at most those of pixels, and what they lack is at a right angle to what they have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.index.fitting import rounded, scale_of
from golddiff.system.parallel import for_each

SIDE = 8  # pixels, at most
PART = 16  # values of a block for each number that is kept


@dataclass(frozen=True)
class Blocks:
    """How blocks are seen: z = basis block, kept as round(z / scale) in -127..127.

    Attributes:
        columns: (B, W) int64 input values of each block.
        basis: (q, W) float32, orthonormal rows.
        scale: (q,) float32, above 0.
    """

    columns: NDArray[np.int64]
    basis: NDArray[np.float32]
    scale: NDArray[np.float32]

    @property
    def numbers(self) -> int:
        """Of an image: B q."""
        return len(self.columns) * len(self.basis)

    @property
    def scales(self) -> NDArray[np.float32]:
        """(B q,) of each number, block after block."""
        return np.tile(self.scale, len(self.columns))

    def project(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """The numbers (B q,) of one query (D,), in units of z."""
        z: NDArray[np.float32] = (x[self.columns] @ self.basis.T).ravel()
        return z

    def seen(self, values: NDArray[np.float32]) -> NDArray[np.int8]:
        """What is kept of images, (n, B q).

        Args:
            values: (D, n) an input of all images together.
        """
        q = len(self.basis)
        kept = np.empty((values.shape[1], self.numbers), np.int8)

        def project(b: int) -> None:
            z = self.basis @ values[self.columns[b]]
            kept[:, b * q : (b + 1) * q] = rounded(z, self.scale).T

        for_each(project, range(len(self.columns)))
        return kept

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What was fitted, for a file."""
        return {"basis": self.basis, "scale": self.scale}


def columns_of(shape: tuple[int, ...]) -> NDArray[np.int64]:
    """The input values (B, W) of each block of an image; each value of points by itself.

    A block's side is the largest divisor of the image's, at most 8: 64 -> 8, 28 -> 7, 20 -> 5.
    """
    d = int(np.prod(shape))
    if len(shape) != 3:
        return np.arange(d)[:, None]
    c, h, w = shape
    high, wide = (max(s for s in range(1, SIDE + 1) if side % s == 0) for side in (h, w))
    split = np.arange(d).reshape(c, h // high, high, w // wide, wide)
    blocks: NDArray[np.int64] = split.transpose(1, 3, 0, 2, 4).reshape(-1, c * high * wide)
    return blocks


def numbers_of(shape: tuple[int, ...]) -> int:
    """Numbers of an image of a shape."""
    count, width = columns_of(shape).shape
    return int(count) * -(-int(width) // PART)


def fitted(shape: tuple[int, ...], sample: NDArray[np.float32]) -> Blocks:
    """Fit to a sample of images (S, D), all blocks of them together."""
    columns = columns_of(shape)
    width = columns.shape[1]
    q = -(-width // PART)
    squares = np.zeros((width, width))
    for block in columns:
        part = sample[:, block]
        squares += part.T @ part
    basis = np.ascontiguousarray(np.linalg.eigh(squares)[1][:, ::-1][:, :q].T.astype(np.float32))
    reach = np.zeros(q, np.float32)
    for block in columns:
        np.maximum(reach, np.abs(sample[:, block] @ basis.T).max(axis=0), out=reach)
    return Blocks(columns, basis, scale_of(reach))


def of_tensors(shape: tuple[int, ...], tensors: dict[str, NDArray[Any]]) -> Blocks:
    """Those of :meth:`Blocks.tensors`, checked: compiled code reads as many numbers.

    Raises:
        ValueError, KeyError: arrays of other shapes or types, or with values that are no numbers.
    """
    columns = columns_of(shape)
    q = numbers_of(shape) // len(columns)
    expected = {"basis": (q, columns.shape[1]), "scale": (q,)}
    for name, wanted in expected.items():
        array = tensors[name]
        if array.shape != wanted or array.dtype != np.float32 or not np.isfinite(array).all():
            raise ValueError(f"{name}: {array.dtype} of shape {array.shape}")
    if (tensors["scale"] <= 0).any():
        raise ValueError("scale: expected numbers above 0")
    return Blocks(columns, tensors["basis"], tensors["scale"])
