"""Compiled loops over stored rows: squared distances and weighted sums, converted on the fly.

Differences are true float32 differences, summed in float64 every 256 values: neither sigma 80
(large sums) nor sigma 0.002 (small differences) loses the posterior to rounding. A result depends
on its query and row alone, so it is the same, to the bit, whatever the batch or the chunk.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.system.parallel import for_each
from golddiff.system.residency import at_hand

# Sums may be reordered (that is what vectorises them), but NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "arcp", "nsz"}

ROWS_PER_TASK = 512


@njit(nogil=True, cache=True, fastmath=FAST)
def _squared_distances(flat, rows, x, scale, offset, out):  # type: ignore[no-untyped-def]
    d = flat.shape[1]
    value = np.empty(d, np.float32)
    for j in range(len(rows)):
        row = flat[rows[j]]
        for n in range(d):
            value[n] = np.float32(row[n]) * scale + offset
        for q in range(len(x)):
            query = x[q]
            total = np.float64(0.0)
            for start in range(0, d, 256):
                # One-dimensional views: with two indices the compiler does not vectorise the sum.
                a, v = query[start : start + 256], value[start : start + 256]
                part = np.float32(0.0)
                for n in range(len(a)):
                    difference = a[n] - v[n]
                    part += difference * difference
                total += part
            out[q, j] = total


@njit(nogil=True, cache=True, fastmath=FAST)
def _weighted_sums(flat, rows, weights, scale, offset, out):  # type: ignore[no-untyped-def]
    d = flat.shape[1]
    value = np.empty(d, np.float32)
    for j in range(len(rows)):
        converted = False
        for q in range(len(weights)):
            weight = weights[q, j]
            if weight == 0:
                continue
            if not converted:
                row = flat[rows[j]]
                for n in range(d):
                    value[n] = np.float32(row[n]) * scale + offset
                converted = True
            sums = out[q]
            for n in range(d):
                sums[n] += weight * value[n]


def distances_of(
    flat: NDArray[Any], rows: NDArray[np.int64], x: NDArray[np.float32], scale: float, offset: float
) -> NDArray[np.float64]:
    """As :func:`squared_distances`, of an array at hand, on this thread alone."""
    out = np.empty((len(x), len(rows)))
    _squared_distances(flat, rows, x, np.float32(scale), np.float32(offset), out)
    return out


def sums_of(
    flat: NDArray[Any],
    rows: NDArray[np.int64],
    weights: NDArray[np.float64],
    scale: float,
    offset: float,
) -> NDArray[np.float64]:
    """Sum over rows of weights[q, j] * x_{rows[j]}, (b, D), of an array at hand, on this thread.

    In float32, so for some hundred rows; weights of zero cost nothing.
    """
    out = np.zeros((len(weights), flat.shape[1]), np.float32)
    held = weights.astype(np.float32)
    _weighted_sums(flat, rows, held, np.float32(scale), np.float32(offset), out)
    return out.astype(np.float64)


def squared_distances(
    flat: NDArray[Any],
    rows: NDArray[np.int64],
    x: NDArray[np.float32],
    scale: float,
    offset: float,
) -> NDArray[np.float64]:
    """||x_q - x_i||^2 for every query and row.

    Args:
        flat: (N, D) uint8 or float32 stored values.
        rows: (k,) rows to compare with.
        x: (b, D) queries.
        scale: stored value times this ...
        offset: ... plus this is the value compared.

    Returns:
        (b, k) float64.
    """
    out = np.empty((len(x), len(rows)))

    def task(start: int) -> None:
        part = slice(start, start + ROWS_PER_TASK)
        with at_hand(flat, rows[part]) as (values, places):
            out[:, part] = distances_of(values, places, x, scale, offset)

    for_each(task, range(0, len(rows), ROWS_PER_TASK))
    return out
