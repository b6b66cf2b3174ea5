"""How many of a unit's masks hold an input, for several thresholds in one pass over the entries."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def add_counts(entries, diagonal, bounds, unit, counts):  # type: ignore[no-untyped-def]
    """Count |entries_nq| / diagonal_n >= bound, output by output, into the output's unit.

    Of rows (n, D) of a matrix, for ascending bounds (T,), added to counts (T, n, U).
    """
    for n in range(len(entries)):
        row, scale = entries[n], diagonal[n]
        for q in range(len(row)):
            ratio = abs(row[q]) / scale
            for t in range(len(bounds)):
                if ratio < bounds[t]:
                    break
                counts[t, n, unit[q]] += 1
