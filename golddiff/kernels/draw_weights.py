"""Compiled passes that turn distances into sampling weights of images.

The tempered weight is t = exp(-(d - best) g / 2) and the posterior weight is t^2, so that one
exponential gives both. See :mod:`golddiff.supports.index.drawing`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from golddiff.kernels.lanes import LANES, NEGLIGIBLE, any_above, exp, load, store, sum_of


@njit(nogil=True, cache=True)
def weight_sums(distances, best, gain):  # type: ignore[no-untyped-def]
    """The sums of t^2, t^4 and t, in float32 over 16 images and float64 beyond.

    Args:
        distances: (n,) float32, contiguous, to one query.
        best: float32, the smallest distance of all images, so that t <= 1.
        gain: float32, 1 / (2 sigma^2).
    """
    exact, squares, tempered = 0.0, 0.0, 0.0
    half = np.float32(-gain / 2)
    whole = len(distances) // LANES * LANES
    for i in range(0, whole, LANES):
        power = (load(distances, i) - best) * half
        if not any_above(power, -NEGLIGIBLE):
            continue
        t = exp(power)
        w = t * t
        exact += np.float64(sum_of(w))
        squares += np.float64(sum_of(w * w))
        tempered += np.float64(sum_of(t))
    for i in range(whole, len(distances)):
        u = np.float64(np.exp((distances[i] - best) * half))
        exact += u**2
        squares += u**4
        tempered += u
    return exact, squares, tempered


@njit(nogil=True, cache=True)
def add_weights(distances, best, gain, a, b, out):  # type: ignore[no-untyped-def]
    """Add a t^2 + b t to ``out`` (n,) float32; other arguments as in :func:`weight_sums`."""
    half = np.float32(-gain / 2)
    whole = len(distances) // LANES * LANES
    for i in range(0, whole, LANES):
        power = (load(distances, i) - best) * half
        if not any_above(power, -NEGLIGIBLE):
            continue
        t = exp(power)
        store(out, i, load(out, i) + (t * a + b) * t)
    for i in range(whole, len(distances)):
        u = np.exp((distances[i] - best) * half)
        out[i] += (a * u + b) * u
