"""Compression of images to the leading principal components of their blocks of pixels.

In photographs of 3 x 64 x 64, 12 of the 192 components of 8 x 8 blocks hold 94 % of the sum of
squares; averages over 4 x 4 pixels, the same count of numbers, mostly repeat the brightness in
three channels. All blocks share one basis, so that a projection takes 24 operations per pixel. The
projection is orthonormal, so distances between projections are at most those between images.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.byte_distances import MIDDLE
from golddiff.system.numbers import F32, I64

SIDE = 8  # largest side of a block in pixels
RATIO = 16  # values of a block per coefficient
MAX_LEVEL = 127  # largest magnitude of a quantized coefficient
SLACK = 1.25  # range of the quantization, relative to the sample's largest coefficient


@dataclass(frozen=True)
class Blocks:
    """Coefficients z = basis @ block, quantized to the byte 128 + round(z / unit)."""

    columns: I64  # (B, W) int64 input values of each block
    basis: F32  # (q, W) float32, orthonormal rows
    unit: float  # quantization step of all coefficients

    def project(self, x: F32) -> F32:
        """The coefficients z (Q, B q) of queries (Q, D), block by block.

        In float64, one query at a time, so that they depend on neither batch nor processor.
        """
        basis = self.basis.T.astype(np.float64)
        z = [(query.astype(np.float64)[self.columns] @ basis).ravel() for query in x]
        return np.stack(z).astype(np.float32)

    def compress(self, values: F32) -> tuple[NDArray[np.uint8], F32]:
        """Compress images (n, D).

        Returns:
            Bytes (n, B q), and lengths (n, 2) computed in float64: the norm of the image's residual
            after projection, and the norm of the quantization error.
        """
        z = (values[:, self.columns] @ self.basis.T).reshape(len(values), -1)
        levels = np.clip(np.rint(z / np.float32(self.unit)), -MAX_LEVEL, MAX_LEVEL)
        error = z - levels * np.float32(self.unit)
        residual = np.einsum("nd,nd->n", values, values, dtype=np.float64)
        residual -= np.einsum("nb,nb->n", z, z, dtype=np.float64)
        lengths = [np.sqrt(residual.clip(0)), np.linalg.norm(error.astype(np.float64), axis=1)]
        return (levels + MIDDLE).astype(np.uint8), np.stack(lengths, 1).astype(np.float32)

    def tensors(self) -> dict[str, NDArray[Any]]:
        """The fitted values as named arrays, for a file."""
        return {"basis": self.basis, "unit": np.array([self.unit])}


def columns_of(shape: tuple[int, ...]) -> I64:
    """The input values (B, W) of each block of an image; for points, a block is a single value.

    A block's side is the largest divisor of the image's side up to 8: 64 -> 8, 28 -> 7, 20 -> 5.
    """
    d = int(np.prod(shape))
    if len(shape) != 3:
        return np.arange(d)[:, None]
    c, h, w = shape
    high, wide = (max(s for s in range(1, SIDE + 1) if side % s == 0) for side in (h, w))
    split = np.arange(d).reshape(c, h // high, high, w // wide, wide)
    return split.transpose(1, 3, 0, 2, 4).reshape(-1, c * high * wide)


def numbers_of(shape: tuple[int, ...]) -> int:
    """Number of coefficients of an image of a shape."""
    count, width = columns_of(shape).shape
    return int(count) * -(-int(width) // RATIO)


def fitted(shape: tuple[int, ...], sample: F32) -> Blocks:
    """Fit the basis and the unit to all blocks of a sample of images (S, D)."""
    columns = columns_of(shape)
    width = columns.shape[1]
    q = -(-width // RATIO)
    squares = np.zeros((width, width))
    for block in columns:
        part = sample[:, block]
        squares += part.T @ part
    basis = np.ascontiguousarray(np.linalg.eigh(squares)[1][:, ::-1][:, :q].T.astype(np.float32))
    reach = max(float(np.abs(sample[:, block] @ basis.T).max()) for block in columns)
    return Blocks(columns, basis, reach * SLACK / MAX_LEVEL if reach > 0 else 1.0)


def of_tensors(shape: tuple[int, ...], tensors: dict[str, NDArray[Any]]) -> Blocks:
    """The blocks with these :meth:`Blocks.tensors`; raises ValueError if they do not fit a shape.

    Compiled code relies on their sizes.
    """
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
