"""Estimates of the memory that a training set needs, checked before its store is built."""

from __future__ import annotations

import math
from collections.abc import Callable

from golddiff.system.memory import largest_side, require_memory

# Peak number of (D, min(N, D)) float64 arrays, LAPACK's two included: 4.1 to 4.6 measured for N x D
# from 400 x 60,000 to 5,000 x 3,072.
_ARRAYS = 4.6
SMALL = 64  # the side that an error advises for images too large


def covariance_bytes(n: int, d: int) -> float:
    """Bytes needed to compute and factor the covariance of n images of d values."""
    return _ARRAYS * 8 * d * min(n, d)


def mask_bytes(n: int, d: int) -> float:
    """Bytes that PCA over n images of d values needs for the covariance or its masks."""
    # The Wiener matrix W and its factor in float32, and the mask of one byte per entry.
    return max(covariance_bytes(n, d), d * (4.0 * d + 4 * min(n, d) + d))


def check_images(
    n: int, shape: tuple[int, ...], needed: Callable[[int, int], float], what: str
) -> None:
    """Raise ArgumentError if ``needed(n, d)`` bytes do not fit in memory; ``what`` is the work."""
    side = largest_side(lambda s: needed(n, shape[0] * s * s)) if len(shape) == 3 else 0
    # The command line shows "size=" as "--size ".
    fits = f"read them with size={min(SMALL, side)} (at most {side}), which scales and crops them"
    require_memory(
        needed(n, math.prod(shape)),
        f"{what} {n:,} images of {' x '.join(map(str, shape))} values",
        fits if side else "fewer images would fit",
    )
