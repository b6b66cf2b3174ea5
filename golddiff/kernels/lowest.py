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
    n = len(numbers)
    if k >= n:
        return np.arange(n)
    if k < n // 4:
        sample, expected = numbers[::STRIDE], k / STRIDE
        rank = min(len(sample) - 1, int(expected + SLACK * np.sqrt(expected + 1)))
        passed = np.flatnonzero(numbers <= np.partition(sample, rank)[rank])
        if len(passed) >= k:
            return passed[_of_few(numbers[passed], k)]
    return _of_few(numbers, k)


def _of_few(numbers: F32, k: int) -> I64:
    bound = np.partition(numbers, k - 1)[k - 1]
    below = np.flatnonzero(numbers < bound)
    equal = np.flatnonzero(numbers == bound)[: k - len(below)]
    return np.sort(np.concatenate([below, equal]))
