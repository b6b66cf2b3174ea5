"""A float32 exponential that compilers vectorise (numba calls the scalar library function)."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(nogil=True, cache=True, inline="always")  # type: ignore[untyped-decorator]
def exp_block(values, shift, bits):  # type: ignore[no-untyped-def]
    """values[i] = exp(values[i] - shift), for values[i] <= shift, in place.

    2^n * p(r) with n = round(v / ln 2) and a polynomial of degree 6 on |r| <= ln(2) / 2: relative
    error below 2e-7. Below exp(-87) the result is 0.

    Args:
        values: (m,) float32.
        shift: float32.
        bits: (m,) int32, scratch.
    """
    scales = bits.view(np.float32)
    for i in range(len(values)):
        v = max(values[i] - shift, np.float32(-88.0))
        n = np.floor(v * np.float32(1.44269504) + np.float32(0.5))
        r = v - n * np.float32(0.693359375) + n * np.float32(2.12194440e-4)
        p = np.float32(1.0 / 720)
        p = p * r + np.float32(1.0 / 120)
        p = p * r + np.float32(1.0 / 24)
        p = p * r + np.float32(1.0 / 6)
        p = p * r + np.float32(0.5)
        p = p * r + np.float32(1.0)
        p = p * r + np.float32(1.0)
        values[i] = p if v > np.float32(-87.0) else np.float32(0.0)
        bits[i] = (np.int32(n) + np.int32(127)) << np.int32(23)
    for i in range(len(values)):
        values[i] *= scales[i]
