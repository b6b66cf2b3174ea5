"""Arrays by the numbers they hold; and whole numbers, checked."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from golddiff.system.errors import ArgumentError

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
I64 = NDArray[np.int64]


def is_whole(value: object) -> TypeGuard[int]:
    """Whether it is a whole number, of Python's or NumPy's; true and false are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_count(name: str, value: object) -> int:
    """A whole number of 1 or more, as Python's; raises where it is none."""
    if not is_whole(value) or value < 1:
        raise ArgumentError(f"{name}: got {value!r}, expected an integer of 1 or more")
    return int(value)


def check_seed(seed: object) -> int:
    """A seed as Python's number; raises where it is none."""
    if not is_whole(seed) or not 0 <= seed < 2**64:
        raise ArgumentError(f"seed: got {seed!r}, expected an integer from 0 to 2**64 - 1")
    return int(seed)
