"""How many of a unit's masks hold an input, for several thresholds in one pass over the entries."""

from __future__ import annotations

from numba import njit


@njit(nogil=True, cache=True)
def add_counts(entries, diagonal, bounds, unit, counts, first):  # type: ignore[no-untyped-def]
    """Count |entries_nq| / diagonal_n >= bound, output by output, into the output's unit.

    Of rows (n, D) of a matrix, the first one's number given, for ascending bounds (T,), in counts
    (T, D, U), which begin at 0.
    """
    for n in range(len(entries)):
        row, scale = entries[n], diagonal[n]
        for q in range(len(row)):
            ratio, reached = abs(row[q]) / scale, 0
            for t in range(len(bounds)):
                reached += ratio >= bounds[t]
            if reached:
                counts[reached - 1, first + n, unit[q]] += 1
        for t in range(len(bounds) - 1, 0, -1):  # what reaches one reaches those below it
            for u in range(counts.shape[2]):
                counts[t - 1, first + n, u] += counts[t, first + n, u]
