"""The k lowest of many numbers, fast where k is a small part of them.

A threshold guessed from every sixteenth number lets a few through; only those are sorted.
"""

from __future__ import annotations

import numpy as np

from golddiff.system.numbers import F32, I64

STRIDE = 16
SLACK = 6.0  # standard deviations of the guess: too few pass about once in 10^9 rows


def lowest(numbers: F32, k: int) -> I64:
    """Places of the k lowest of the numbers (n,), ascending places; of equals the first.

    Exactly those that a sort by (number, place) puts first.
    """
    if k >= len(numbers):
        return np.arange(len(numbers))
    few = _few(numbers, k)
    low = numbers[few]
    bound = np.partition(low, k - 1)[k - 1]
    below = np.flatnonzero(low < bound)
    equal = np.flatnonzero(low == bound)[: k - len(below)]
    places: I64 = few[np.sort(np.concatenate([below, equal]))]
    return places


def lowest_first(numbers: F32, k: int) -> I64:
    """The same places, lowest number first."""
    few = _few(numbers, min(k, len(numbers)))
    places: I64 = few[np.argsort(numbers[few], kind="stable")[:k]]
    return places


def _few(numbers: F32, k: int) -> I64:
    """Ascending places of not many more than k numbers, the lowest among them."""
    n = len(numbers)
    if k < n // 2:
        sample, expected = numbers[::STRIDE], k / STRIDE
        rank = min(len(sample) - 1, int(expected + SLACK * np.sqrt(expected + 1)))
        passed = np.flatnonzero(numbers <= np.partition(sample, rank)[rank])
        if len(passed) >= k:
            return passed
    return np.arange(n)
