"""Images compared more finely than by the index's coordinates: by proxies, a byte a number.

The distance of an image to a query is |x|^2 - 2 x . x_i + |x_i|^2. With P the proxies' rows, made
to length 1, x . x_i is about (P x) . (P x_i): what is left out is a sum of random sign. The norms
are the store's own.
"""

from __future__ import annotations

import math
import os
from functools import cached_property
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray
from scipy.sparse import csr_array

from golddiff.files import system_errors
from golddiff.parallel import in_order
from golddiff.proxy import pools, quarter_shape
from golddiff.residency import at_hand, parts
from golddiff.store import ImageStore

NAME = "proxies.bin"
LARGEST = 127  # of an int8
ROWS_PER_TASK = 1024
ROWS_AT_ONCE = 4096
MEASURED = 1024  # images that tell what proxies lack
SPREADS = 1.5  # standard deviations; larger differences are rare, and most of those matter little
NATS = 10.0  # an image of e^-10 of the best one's weight is one of thousands that count, or none


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "arcp", "nsz"})
def _products(flat, rows, vector, out):  # type: ignore[no-untyped-def]
    for j in range(len(rows)):
        row = flat[rows[j]]
        total = np.float32(0)
        for n in range(len(vector)):
            total += np.float32(row[n]) * vector[n]
        out[j] = total


def shape_of(store: ImageStore) -> tuple[int, int]:
    """Of the file: (N, d'), int8."""
    return store.n, int(np.prod(quarter_shape(store.shape)))


def write_screen(store: ImageStore, path: Path) -> float:
    """Write the proxies as int8, in store order; what a proxy is, of one of them."""
    proxies = store.proxies(quarter_shape(store.shape))
    most = 0.0
    for _, rows in parts(store.rows_of(None), ROWS_AT_ONCE):
        with at_hand(proxies, rows) as (flat, places):
            most = max(most, float(np.abs(flat[places]).max()))
    scale = max(most, 1e-30) / LARGEST
    with system_errors(path), path.open("wb") as file:
        for _, rows in parts(store.rows_of(None), ROWS_AT_ONCE):
            with at_hand(proxies, rows) as (flat, places):
                np.rint(flat[places] / scale).astype(np.int8).tofile(file)
        file.flush()
        os.fsync(file.fileno())
    return scale


class Screen:
    """The proxies of a store, as they are compared with one query after the other.

    The file is resident as far as it is read, within the store's memory limit; where it would take
    more than half of that, rows are read one by one.

    Args:
        store: the training set.
        path: of the file.
        scale: what :func:`write_screen` told.
    """

    def __init__(self, store: ImageStore, path: Path, scale: float) -> None:
        self._store = store
        rows, lengths = pools(store.shape)
        self._rows = csr_array(rows * (scale / lengths[:, None] ** 2))
        self._unit = np.float32(scale) / lengths
        self._flat = store.beside(path, "int8", shape_of(store))

    @cached_property
    def lacking(self) -> float:
        """Length of what the proxies lack of an image, in the root mean square."""
        store = self._store
        rows = store.rows_of(None)[:: max(1, store.n // MEASURED)]
        with at_hand(self._flat, rows) as (flat, places):
            z = flat[places] * self._unit
        lost = store.norms[rows].astype(np.float64) ** 2 - np.einsum("nr,nr->n", z, z)
        return float(np.sqrt(np.maximum(lost, 0).mean()))

    def margin(self, sigma: float) -> float:
        """How much larger than the least a distance may be, of an image that may matter.

        The query's noise has a part sigma times what the proxies lack, so a distance is off by a
        number of standard deviation 2 sigma ``lacking``, and a difference of two by sqrt(2) times
        as much; and an image counts while its distance is within some 2 sigma^2 of the least.
        """
        return SPREADS * 2 * math.sqrt(2) * sigma * self.lacking + NATS * 2 * sigma**2

    @property
    def numbers(self) -> int:
        """Of each image."""
        return int(self._flat.shape[1])

    def distances(self, x: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """About |x - x_i|^2 less what all images share, of a query (D,) and some images, (k,)."""
        vector = (self._rows @ x).astype(np.float32)
        out = np.empty(len(rows), np.float32)

        def task(start: int) -> None:
            part = slice(start, start + ROWS_PER_TASK)
            with at_hand(self._flat, rows[part]) as (flat, places):
                _products(flat, places, vector, out[part])

        for _ in in_order(task, range(0, len(rows), ROWS_PER_TASK)):
            pass
        distances: NDArray[np.float32] = self._store.norms[rows] ** 2 - 2 * out
        return distances
