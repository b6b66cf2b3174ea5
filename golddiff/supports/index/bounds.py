"""Lower bounds on the distances of images to a query, from the index alone.

With P the orthonormal projection on all blocks and Q the projection on its complement,

    ||x - x_i||^2 = ||P x - P x_i||^2 + ||Q x - Q x_i||^2.

By the triangle inequality, the root of the first term is at least the distance to the quantized
coefficients minus the quantization errors, and the root of the second at least the difference of
the lengths of Q x and Q x_i. Sums of float32 numbers may have a relative error of ``ROUNDING``.
"""

from __future__ import annotations

import numpy as np

from golddiff.kernels.byte_distances import QuantizedQueries
from golddiff.supports.index.distances import IndexedNumbers
from golddiff.supports.index.image_index import Index
from golddiff.system.numbers import F32, F64, I64

ROUNDING = 2e-5


def least_squares(index: Index, x: F32, rows: I64) -> F64:
    """Lower bounds (n,) on the squared distances of images (n,) to a query (D,)."""
    store = index.store
    distances = IndexedNumbers(index).distances(store, x[None], rows)[0, 0]
    projected = index.blocks.project(x[None])
    z = projected[0].astype(np.float64)
    query_error = float(np.linalg.norm(z - QuantizedQueries.of(projected).values[0]))
    squared = float(x.astype(np.float64) @ x)
    slack = ROUNDING * (float(np.sqrt(squared)) + store.radius)
    residual = squared - float(z @ z)
    low, high = (np.sqrt(max(0.0, residual + s * ROUNDING * squared)) for s in (-1, 1))
    rest, error = index.lengths[rows].astype(np.float64).T
    # rest^2 is a difference of two squares, each known to ROUNDING of the largest.
    shift = ROUNDING * store.radius**2
    gap = np.maximum(np.sqrt((rest**2 - shift).clip(0)) - high, low - np.sqrt(rest**2 + shift))
    apart = np.sqrt(distances.astype(np.float64)) - error - query_error
    bounds: F64 = np.maximum(apart - slack, 0.0) ** 2 + np.maximum(gap - slack, 0.0) ** 2
    return bounds
