"""The training image nearest to a generated one, by exact search: has it been memorised?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.rows import squared_distances
from golddiff.store.images import ImageStore

QUERIES_AT_ONCE = 16


def nearest_images(
    store: ImageStore, x: NDArray[np.float32], omit: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The row nearest to each query and its distance, over all images of the store.

    Args:
        store: the training set.
        x: (b, D) queries.
        omit: (b,) a row that each query is not compared with (itself), or None.

    Returns:
        (b,) rows, and (b,) distances ||x - x_i|| / sqrt(D) in units of x0.
    """
    rows = store.rows_of(None)
    found = np.empty(len(x), np.int64)
    distances = np.empty(len(x))
    for start in range(0, len(x), QUERIES_AT_ONCE):
        part = slice(start, start + QUERIES_AT_ONCE)
        squares = squared_distances(store.flat, rows, x[part], store.scale, store.offset)
        if omit is not None:
            squares[np.arange(len(squares)), omit[part]] = np.inf
        found[part] = squares.argmin(axis=1)
        distances[part] = np.sqrt(squares.min(axis=1) / store.d)
    return found, distances


def typical_distance(store: ImageStore, images: int = 32) -> float | None:
    """Median distance of a training image to its nearest other, of some spread over the store."""
    if store.n < 2:
        return None
    rows = np.unique(np.linspace(0, store.n - 1, images).astype(np.int64))
    return float(np.median(nearest_images(store, store.values(rows), omit=rows)[1]))
