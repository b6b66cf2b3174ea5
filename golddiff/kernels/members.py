"""Weighed squared distances of kept coordinates to a query's, for many images and one query."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

FAST = {"reassoc", "contract", "arcp", "nsz"}


@njit(nogil=True, cache=True, fastmath=FAST)
def _distances(coordinates, turn, goal, out):  # type: ignore[no-untyped-def]
    n, r = coordinates.shape
    s = turn.shape[1]
    sums = np.empty((4, s), np.float32)
    for first in range(0, n, 4):
        # Four images at once: each row of the matrix is read once for them.
        a, b, c, d = sums[0], sums[1], sums[2], sums[3]
        i, j = min(first + 1, n - 1), min(first + 2, n - 1)
        k = min(first + 3, n - 1)
        for p in range(s):
            a[p] = b[p] = c[p] = d[p] = -goal[p]
        for m in range(r):
            row = turn[m]
            za, zb = np.float32(coordinates[first, m]), np.float32(coordinates[i, m])
            zc, zd = np.float32(coordinates[j, m]), np.float32(coordinates[k, m])
            for p in range(s):
                a[p] += za * row[p]
                b[p] += zb * row[p]
                c[p] += zc * row[p]
                d[p] += zd * row[p]
        ta = tb = tc = td = np.float32(0)
        for p in range(s):
            ta += a[p] * a[p]
            tb += b[p] * b[p]
            tc += c[p] * c[p]
            td += d[p] * d[p]
        out[k], out[j], out[i], out[first] = td, tc, tb, ta


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
    if len(coordinates):
        _distances(coordinates, turn, goal, out)
    return out
