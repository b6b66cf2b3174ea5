"""Weighed squared distances of kept coordinates to a query's, for many images and one query."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FAST = {"reassoc", "contract", "arcp", "nsz"}


ROWS_AT_ONCE = 2048  # whose products stay in a core's own cache until they are squared


@njit(nogil=True, cache=True, fastmath=FAST)
def _squares(products, goal, out):  # type: ignore[no-untyped-def]
    for i in range(len(products)):
        row = products[i]
        total = np.float32(0)
        for p in range(len(goal)):
            difference = row[p] - goal[p]
            total += difference * difference
        out[i] = total


@njit(nogil=True, cache=True, fastmath=FAST)
def _scaled(coordinates, scale, goal, out):  # type: ignore[no-untyped-def]
    n, r = coordinates.shape
    for i in range(n):
        row = coordinates[i]
        total = np.float32(0)
        for m in range(r):
            difference = np.float32(row[m]) * scale[m] - goal[m]
            total += difference * difference
        out[i] = total


def scaled_distances(
    coordinates: NDArray[Any], scale: NDArray[np.float32], goal: NDArray[np.float32]
) -> NDArray[np.float32]:
    """|scale * z_i - goal|^2 for each image i, (n,).

    Args:
        coordinates: (n, r) z_i, int8 or float32.
        scale: (r,).
        goal: (r,).
    """
    out = np.empty(len(coordinates), np.float32)
    if len(coordinates):
        _scaled(coordinates, scale, goal, out)
    return out


def weighed_distances(
    coordinates: NDArray[Any], turn: NDArray[np.float32], goal: NDArray[np.float32]
) -> NDArray[np.float32]:
    """|z_i turn - goal|^2 for each image i, (n,).

    Args:
        coordinates: (n, r) z_i, int8 or float32.
        turn: (r, s).
        goal: (s,).
    """
    out = np.empty(len(coordinates), np.float32)
    for i in range(0, len(coordinates), ROWS_AT_ONCE):
        some = coordinates[i : i + ROWS_AT_ONCE].astype(np.float32, copy=False)
        _squares(some @ turn, goal, out[i : i + ROWS_AT_ONCE])
    return out
