"""Arrays that begin where a line of memory does.

NumPy's begin at multiples of 16 bytes. Sixteen float32 numbers read from there lie in two lines,
each time: a masked sum then takes 1.4 times as long.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from golddiff.system.numbers import F32

LINE = 64  # bytes


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def empty_numbers(count: int) -> F32:
    """``count`` float32 numbers, whatever they are; for compiled functions."""
    numbers = np.empty(count + LINE // 4, np.float32)
    skipped = (-numbers.ctypes.data) % LINE // 4
    return numbers[skipped : skipped + count]


def empty(shape: tuple[int, ...]) -> F32:
    """Float32 numbers of a shape, whatever they are."""
    # As plain Python: compiling it takes a second.
    numbers: F32 = empty_numbers.py_func(math.prod(shape)).reshape(shape)
    return numbers


def zeros(shape: tuple[int, ...]) -> F32:
    """Zeros of a shape."""
    numbers = empty(shape)
    numbers[...] = 0
    return numbers
