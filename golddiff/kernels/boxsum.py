"""Sums over windows of p consecutive blocks of numbers, by additions only.

A running sum with subtraction is cheaper, but small sums lose their digits to the rounding of large
ones. Here windows of 3, 9, 27 ... are each the sum of three smaller windows, and p is composed from
its digits in base 3, with about 3 log_3 p additions per number.
"""

from __future__ import annotations

from numba import njit

from golddiff.kernels.lanes import LANES, load, store
from golddiff.system.numbers import F32


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def box_sum(out: F32, at: int, a: F32, n: int, p: int, step: int) -> None:
    """out[at + i] = sum over j < p of a[i + j * step], for i < n; indices count LANES numbers.

    Args:
        out: receives the sums.
        at: first block of ``out`` to write.
        a: at least n + (p - 1) * step blocks; overwritten. Must not overlap ``out``.
        n: number of blocks to write.
        p: window length, >= 1.
        step: distance in blocks between the terms of a window.
    """
    window, used, rest = 1, 0, p  # a holds sums of ``window`` terms; ``used`` terms are in out
    while True:
        # Up to seven terms in one pass are cheaper than a second pass.
        digit, rest = (rest, 0) if rest <= 7 else (rest % 3, rest // 3)
        _add_terms(out, at, a, n, digit, used * step, window * step, used == 0)
        used += digit * window
        if rest == 0:
            return
        _sum_thirds(a, n + (p - 3 * window) * step, window * step)
        window *= 3


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _sum_thirds(a: F32, n: int, shift: int) -> None:
    shift *= LANES
    for i in range(0, n * LANES, LANES):
        store(a, i, load(a, i) + load(a, i + shift) + load(a, i + 2 * shift))


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def _add_terms(
    out: F32, at: int, a: F32, n: int, terms: int, start: int, shift: int, empty: bool
) -> None:
    """Add 0 to 7 terms, ``shift`` blocks apart, to ``out``; if ``empty``, overwrite it."""
    if terms == 0:
        return
    at, start, shift = at * LANES, start * LANES, shift * LANES
    for i in range(0, n * LANES, LANES):
        j = start + i
        total = load(a, j)
        if terms >= 3:
            total = total + (load(a, j + shift) + load(a, j + 2 * shift))
        if terms >= 5:
            total = total + (load(a, j + 3 * shift) + load(a, j + 4 * shift))
        if terms == 7:
            total = total + (load(a, j + 5 * shift) + load(a, j + 6 * shift))
        if terms % 2 == 0:
            total = total + load(a, j + (terms - 1) * shift)
        if not empty:
            total = total + load(out, at + i)
        store(out, at + i, total)
