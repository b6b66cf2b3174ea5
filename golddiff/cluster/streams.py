"""Random numbers of one stream, the part that belongs to some rows, without making the others."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Up to this many images a shuffle of all of them is made by every shard, as a single store makes
# it: 80 MB and under a second. Above, the shards' shares are drawn, and each draws its own.
SHUFFLED = 10_000_000


def uniform_part(seeds: Sequence[int], start: int, count: int) -> NDArray[np.float32]:
    """Numbers ``start`` to ``start + count`` of ``default_rng(seeds).random(..., float32)``."""
    generator = np.random.default_rng(list(seeds))
    # A 64-bit draw holds two float32 numbers.
    generator.bit_generator.advance(start // 2)  # type: ignore[attr-defined]
    skipped = start % 2
    return generator.random(skipped + count, np.float32)[skipped:]


def drawn_places(
    seeds: Sequence[int], images: int, count: int, start: int, stop: int
) -> NDArray[np.int64]:
    """Which of the places ``start`` to ``stop`` are among ``count`` drawn of all, ascending.

    Up to ``SHUFFLED`` images: the first of ``default_rng(seeds).permutation(images)``, so the same
    as in one store. Above, this part's share is hypergeometric, found by halving, and is drawn in
    a stream of its own: the same distribution, in proportion to the parts' sizes.

    Args:
        seeds: of the stream.
        images: how many there are.
        count: how many are drawn.
        start: first place of the part.
        stop: the place after its last.
    """
    if images <= SHUFFLED:
        first = np.random.default_rng(list(seeds)).permutation(images)[:count]
        return np.sort(first[(first >= start) & (first < stop)])
    share = _share(seeds, images, count, start, stop)
    generator = np.random.default_rng([*seeds, 1, start, stop])
    found: NDArray[np.int64] = np.sort(
        generator.choice(stop - start, share, replace=False, shuffle=False)
    )
    return found + start


def _share(seeds: Sequence[int], images: int, count: int, start: int, stop: int) -> int:
    """How many of ``count`` drawn fall into a part: those before its end less those before it."""
    return _before(seeds, images, count, stop) - _before(seeds, images, count, start)


def _before(seeds: Sequence[int], images: int, count: int, end: int) -> int:
    """How many of ``count`` drawn lie before a place; the same for all who ask.

    The range is halved; each half's number is drawn in a stream that the range names.
    """
    low, high, inside, before = 0, images, count, 0
    while low < end < high:
        middle = (low + high) // 2
        generator = np.random.default_rng([*seeds, 2, low, high])
        # NumPy's hypergeometric takes at most 10^9 of either kind.
        left = int(_hypergeometric(generator, middle - low, high - middle, inside))
        if end >= middle:
            before, low, inside = before + left, middle, inside - left
        else:
            high, inside = middle, left
    return before + (inside if end >= high else 0)


def _hypergeometric(generator: np.random.Generator, good: int, bad: int, count: int) -> int:
    if max(good, bad) < 10**9:
        return int(generator.hypergeometric(good, bad, count))
    # Beyond that the normal approximation is off by less than one image in 10^4 standard ones.
    n = good + bad
    mean = count * good / n
    spread = np.sqrt(mean * (bad / n) * (n - count) / max(n - 1, 1))
    low, high = max(0, count - bad), min(good, count)
    return int(np.clip(np.rint(generator.normal(mean, spread)), low, high))
