"""Array types by dtype, and checks of integers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from golddiff.system.errors import ArgumentError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is a Python or NumPy integer; booleans do not count."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_count(name: str, value: object) -> int:
    """The value as an int; raises unless it is an integer of 1 or more."""
    if not is_whole(value) or value < 1:
        raise ArgumentError(f"{name}: got {value!r}, expected an integer of 1 or more")
    return int(value)


def check_shape(name: str, shape: object) -> tuple[int, ...]:
    """The shape as a tuple of ints; raises unless it is a sequence of integers of 1 or more."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or not shape:
        raise ArgumentError(f"{name}: got {shape!r:.60}, expected whole numbers (C, H, W)")
    return tuple(check_count(name, side) for side in shape)


def check_seed(seed: object) -> int:
    """The seed as an int; raises unless it is an integer from 0 to 2**64 - 1."""
    if not is_whole(seed) or not 0 <= seed < 2**64:
        raise ArgumentError(f"seed: got {seed!r}, expected an integer from 0 to 2**64 - 1")
    return int(seed)
