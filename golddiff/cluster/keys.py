"""Distances as unsigned integers in the same order, so that a search can halve them exactly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SIGN = np.uint32(1 << 31)


def keys_of(distances: NDArray[np.floating[Any]]) -> NDArray[np.uint64]:
    """Ordered integers of float64 distances >= 0, or of float32 ones of any sign."""
    numbers = distances + 0.0  # -0.0 is equal to 0.0, and its bits are not
    if numbers.dtype == np.float32:
        raw = numbers.view(np.uint32)
        return np.where(raw >= _SIGN, ~raw, raw | _SIGN).astype(np.uint64)
    return np.asarray(numbers, np.float64).view(np.uint64)


def float32_of(keys: NDArray[np.uint64]) -> NDArray[np.float32]:
    """The float32 distances that have these keys."""
    raw = keys.astype(np.uint32)
    return np.where(raw >= _SIGN, raw & ~_SIGN, ~raw).view(np.float32)
