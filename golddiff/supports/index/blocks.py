"""Blocks of pixels by their leading principal components: an image in a sixteenth of its numbers.

What blocks of 8 x 8 pixels look like has far fewer directions than pixels: 12 of 192 hold 94 % of
the squares of photographs of 3 x 64 x 64, where averages over 4 x 4 pixels, as many numbers, hold
most of three channels' brightness three times over. One basis serves all blocks, so that
projecting costs 24 operations a pixel. The rows of all blocks together are orthonormal: distances
in them are at most those of pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.byte_distances import MIDDLE
from golddiff.system.numbers import F32, I64

SIDE = 8  # pixels, at most
PART = 16  # values of a block for each number that is kept
LARGEST = 127
SLACK = 1.25  # what lies further out than this times any of the sample is clipped


@dataclass(frozen=True)
class Blocks:
    """How blocks are seen: z = basis block, kept as the byte 128 + round(z / unit)."""

    columns: I64  # (B, W) int64 input values of each block
    basis: F32  # (q, W) float32, orthonormal rows
    unit: float  # of all numbers alike

    @property
    def numbers(self) -> int:
        """Of an image: B q."""
        return len(self.columns) * len(self.basis)

    def project(self, x: F32) -> F32:
        """The numbers z of queries (Q, D), (Q, B q), block after block.

        In float64 and query by query, so that their last digit hangs on neither batch nor machine.
        """
        basis = self.basis.T.astype(np.float64)
        made = [(query.astype(np.float64)[self.columns] @ basis).ravel() for query in x]
        return np.stack(made).astype(np.float32)

    def kept(self, values: F32) -> tuple[NDArray[np.uint8], F32]:
        """What is kept of images (n, D).

        Returns:
            Their bytes (n, B q); and (n, 2) the length of what the numbers lack of the image, and
            of what the bytes lack of the numbers, in float64 and rounded.
        """
        z = (values[:, self.columns] @ self.basis.T).reshape(len(values), -1)
        whole = np.clip(np.rint(z / np.float32(self.unit)), -LARGEST, LARGEST)
        off = z - whole * np.float32(self.unit)
        left = np.einsum("nd,nd->n", values, values, dtype=np.float64)
        left -= np.einsum("nb,nb->n", z, z, dtype=np.float64)
        lengths = [np.sqrt(left.clip(0)), np.linalg.norm(off.astype(np.float64), axis=1)]
        return (whole + MIDDLE).astype(np.uint8), np.stack(lengths, 1).astype(np.float32)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """What was fitted, for a file."""
        return {"basis": self.basis, "unit": np.array([self.unit])}


def columns_of(shape: tuple[int, ...]) -> I64:
    """The input values (B, W) of each block of an image; each value of points by itself.

    A block's side is the largest divisor of the image's, at most 8: 64 -> 8, 28 -> 7, 20 -> 5.
    """
    d = int(np.prod(shape))
    if len(shape) != 3:
        return np.arange(d)[:, None]
    c, h, w = shape
    high, wide = (max(s for s in range(1, SIDE + 1) if side % s == 0) for side in (h, w))
    split = np.arange(d).reshape(c, h // high, high, w // wide, wide)
    blocks: I64 = split.transpose(1, 3, 0, 2, 4).reshape(-1, c * high * wide)
    return blocks


def numbers_of(shape: tuple[int, ...]) -> int:
    """Numbers of an image of a shape."""
    count, width = columns_of(shape).shape
    return int(count) * -(-int(width) // PART)


def fitted(shape: tuple[int, ...], sample: F32) -> Blocks:
    """Fit to a sample of images (S, D), all blocks of them together."""
    columns = columns_of(shape)
    width = columns.shape[1]
    q = -(-width // PART)
    squares = np.zeros((width, width))
    for block in columns:
        part = sample[:, block]
        squares += part.T @ part
    basis = np.ascontiguousarray(np.linalg.eigh(squares)[1][:, ::-1][:, :q].T.astype(np.float32))
    reach = max(float(np.abs(sample[:, block] @ basis.T).max()) for block in columns)
    return Blocks(columns, basis, reach * SLACK / LARGEST if reach > 0 else 1.0)


def of_tensors(shape: tuple[int, ...], tensors: dict[str, NDArray[Any]]) -> Blocks:
    """Those of :meth:`Blocks.tensors`, checked: compiled code reads as many numbers."""
    columns = columns_of(shape)
    q = numbers_of(shape) // len(columns)
    expected = {"basis": ((q, columns.shape[1]), np.float32), "unit": ((1,), np.float64)}
    for name, (wanted, dtype) in expected.items():
        array = tensors[name]
        if array.shape != wanted or array.dtype != dtype or not np.isfinite(array).all():
            raise ValueError(f"{name}: {array.dtype} of shape {array.shape}")
    unit = float(tensors["unit"][0])
    if unit <= 0:
        raise ValueError("unit: expected a number above 0")
    return Blocks(columns, tensors["basis"], unit)
