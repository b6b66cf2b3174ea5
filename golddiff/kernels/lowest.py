"""The k lowest of many numbers, fast where k is a small part of them.

A threshold guessed from every sixteenth number lets a few through; only those are sorted.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

STRIDE = 16
WORTH = 1 << 14  # numbers; fewer are sorted at once
SLACK = 6.0  # standard deviations of the guess: too few pass about once in 10^9 rows


@njit(nogil=True, cache=True)
def _up_to(numbers, threshold, places):  # type: ignore[no-untyped-def]
    """Write where numbers are at most the threshold; how many, or one more than there is room."""
    count = 0
    room = len(places)
    for start in range(0, len(numbers), 64):
        part = numbers[start : start + 64]
        some = 0
        for i in range(len(part)):
            some += part[i] <= threshold
        if some == 0:
            continue
        if count + some > room:
            return room + 1
        for i in range(len(part)):
            if part[i] <= threshold:
                places[count] = start + i
                count += 1
    return count


def lowest(numbers: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """Places of the k lowest of the numbers (n,), ascending places; of equals the first.

    Exactly those that a sort by (number, place) puts first.
    """
    n = len(numbers)
    if k >= n:
        return np.arange(n)
    if k < n // 4 and n >= WORTH:
        sample = numbers[::STRIDE]
        expected = k / STRIDE
        rank = min(len(sample) - 1, int(expected + SLACK * np.sqrt(expected + 1)))
        threshold = np.partition(sample, rank)[rank]
        places = np.empty(min(n, 4 * k + 64 * STRIDE), np.int64)
        count = _up_to(numbers, threshold, places)
        if k <= count <= len(places):
            passed = places[:count]
            return passed[_of_few(numbers[passed], k)]
    return _of_few(numbers, k)


def _of_few(numbers: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    bound = np.partition(numbers, k - 1)[k - 1]
    below = np.flatnonzero(numbers < bound)
    equal = np.flatnonzero(numbers == bound)[: k - len(below)]
    return np.sort(np.concatenate([below, equal]))
