"""The k lowest of n numbers, fast for k much smaller than n.

A threshold estimated from every sixteenth number selects a few candidates to sort.
"""

from __future__ import annotations

import numpy as np

from golddiff.system.numbers import F32, I64

STRIDE = 16
SLACK = 6.0  # standard deviations above the estimate: too few pass once in about 10^9 calls


def lowest(numbers: F32, k: int) -> I64:
    """Indices of the k lowest numbers (n,), in ascending order; ties go to the lower index.

    They equal the first k of a sort by (number, index).
    """
    if k >= len(numbers):
        return np.arange(len(numbers))
    passed = np.empty(0, np.int64)
    if k < len(numbers) // 2:
        sample, expected = numbers[::STRIDE], k / STRIDE
        rank = min(len(sample) - 1, int(expected + SLACK * np.sqrt(expected + 1)))
        passed = np.flatnonzero(numbers <= np.partition(sample, rank)[rank])
    candidates = passed if len(passed) >= k else np.arange(len(numbers))
    values = numbers[candidates]
    bound = np.partition(values, k - 1)[k - 1]
    below = np.flatnonzero(values < bound)
    equal = np.flatnonzero(values == bound)[: k - len(below)]
    return candidates[np.sort(np.concatenate([below, equal]))]
