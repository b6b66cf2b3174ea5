"""How much memory the work over a training set takes, estimated before a store of it is built."""

from __future__ import annotations

import math
from collections.abc import Callable

from golddiff.system.memory import largest_side, require_memory

# Measured for 400 x 60,000 up to 5,000 x 3,072: 4.1 to 4.6 arrays of (D, min(N, D)) float64 at a
# time, LAPACK's two among them.
_ARRAYS = 4.6


def covariance_bytes(n: int, d: int) -> float:
    """Bytes that the covariance of n images of d values, and its factor, take to make."""
    return _ARRAYS * 8 * d * min(n, d)


def mask_bytes(n: int, d: int) -> float:
    """Bytes that PCA over n images of d values takes for its masks, or for the covariance."""
    # W in float32, what it is a product of, and the mask itself.
    return max(covariance_bytes(n, d), d * (4.0 * d + 4 * min(n, d) + d))


def check_images(
    n: int, shape: tuple[int, ...], needed: Callable[[int, int], float], what: str
) -> None:
    """Raise where the work over images would take more memory than there is."""
    side = 0
    if len(shape) == 3:
        side = largest_side(lambda side: needed(n, shape[0] * side * side))
    fits = f"images of at most {side} x {side} pixels, or fewer of them, would fit"
    require_memory(
        needed(n, math.prod(shape)),
        f"{what} {n:,} images of {' x '.join(map(str, shape))} values",
        fits if side else "fewer images would fit",
    )
