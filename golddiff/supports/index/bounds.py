"""Distances that no image can be below, from the index alone.

With P the orthonormal rows of all blocks and Q the projection on what they lack,

    ||x - x_i||^2 = ||P x - P x_i||^2 + ||Q x - Q x_i||^2.

The first term is at least what the bytes leave of it less their error, the second at least the
difference of the two lengths (triangle inequality). In float64 from sums of float32 numbers, which
are allowed a relative error of ``ROUNDING``.
"""

from __future__ import annotations

import numpy as np

from golddiff.kernels.byte_distances import QuantizedQueries
from golddiff.supports.index.distances import KeptNumbers
from golddiff.supports.index.image_index import Index
from golddiff.system.numbers import F32, F64, I64

ROUNDING = 2e-5


def least_squares(index: Index, x: F32, rows: I64) -> F64:
    """(n,) at most the squared distances of images (n,) to a query (D,)."""
    store = index.store
    near = KeptNumbers(index).distances(store, x[None], rows)[0, 0]
    projected = index.blocks.project(x[None])
    z = projected[0].astype(np.float64)
    moved = float(np.linalg.norm(z - QuantizedQueries.of(projected).values[0]))
    squared = float(x.astype(np.float64) @ x)
    slack = ROUNDING * (float(np.sqrt(squared)) + store.radius)
    left = squared - float(z @ z)
    least, most = (np.sqrt(max(0.0, left + s * ROUNDING * squared)) for s in (-1, 1))
    rest, error = index.lengths[rows].astype(np.float64).T
    # What an image lacks is a difference of two squares, each known to ROUNDING of the largest.
    shift = ROUNDING * store.radius**2
    gap = np.maximum(np.sqrt((rest**2 - shift).clip(0)) - most, least - np.sqrt(rest**2 + shift))
    apart = np.sqrt(near.astype(np.float64)) - error - moved
    bounds: F64 = np.maximum(apart - slack, 0.0) ** 2 + np.maximum(gap - slack, 0.0) ** 2
    return bounds
