"""How many of a unit's masks hold an input, for several thresholds in one pass over the entries."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def add_counts(entries, diagonal, bounds, unit, counts):  # type: ignore[no-untyped-def]
    """Count |entries_nq| / diagonal_n >= bound, output by output, into the output's unit.

    Args:
        entries: (n, D) rows of a matrix.
        diagonal: (n,) what a row is divided by.
        bounds: (T,) ascending.
        unit: (D,) int64 unit of each output.
        counts: (T, n, U) integers to add to.
    """
    for n in range(len(entries)):
        row, scale = entries[n], diagonal[n]
        for q in range(len(row)):
            ratio = abs(row[q]) / scale
            for t in range(len(bounds)):
                if ratio < bounds[t]:
                    break
                counts[t, n, unit[q]] += 1
