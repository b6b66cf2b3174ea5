"""Weights of images that are drawn at random, from their distances: compiled passes over them.

An image's tempered weight is t = exp(-(d - best) g / T), T a temperature, and its posterior weight
is t^T: one exponential gives both. See :mod:`golddiff.supports.index.drawing`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.lanes import LANES, any_above, exp, load, spread, store, sum_of

TEMPERATURE = 5  # a whole number: the posterior weight is that power of the tempered one

Mixture = tuple[np.float32, np.float32, np.float32]


@njit(nogil=True, cache=True)
def _tempered(distances, best, gain, out):  # type: ignore[no-untyped-def]
    """Write t; the sums of t^5, t^10 and t, each 16 images' in float32 and those in float64."""
    exact_sum, square_sum, tempered_sum = 0.0, 0.0, 0.0
    least, gains = spread(best), spread(-gain)
    whole = len(distances) // LANES * LANES
    for i in range(0, whole, LANES):
        t = exp((load(distances, i) - least) * gains)
        store(out, i, t)
        square = t * t
        weight = square * square * t
        exact_sum += np.float64(sum_of(weight))
        square_sum += np.float64(sum_of(weight * weight))
        tempered_sum += np.float64(sum_of(t))
    for i in range(whole, len(distances)):
        u = np.exp((distances[i] - best) * -gain)
        out[i] = u
        power = np.float64(u * u * u * u * u)
        exact_sum += power
        square_sum += power * power
        tempered_sum += np.float64(u)
    return exact_sum, square_sum, tempered_sum


@njit(nogil=True, cache=True)
def _taken(tempered, a, b, e, uniform, places, chances):  # type: ignore[no-untyped-def]
    """Write the places drawn; how many, or one more than there is room."""
    count, room = 0, len(places)
    many_a, many_b, many_e = spread(a), spread(b), spread(e)
    whole = len(tempered) // LANES * LANES
    for start in range(0, len(tempered), LANES):
        if start < whole:
            t = load(tempered, start)
            square = t * t
            weight = many_a * (square * square * t) + many_b * t + many_e
            # Numbers are below 1, so that chances need no bound here.
            if not any_above(weight - load(uniform, start), np.float32(0.0)):
                continue
        for i in range(start, min(start + LANES, len(tempered))):
            u = tempered[i]
            chance = min(np.float32(1.0), a * (u * u * u * u * u) + b * u + e)
            if uniform[i] < chance:
                if count == room:
                    return room + 1
                places[count], chances[count] = i, chance
                count += 1
    return count


def tempered_weights(
    distances: NDArray[np.float32], best: float, gain: float, out: NDArray[np.float32]
) -> tuple[float, float, float]:
    """Write tempered weights t (n,); the sums of t^T, of its square and of t.

    Args:
        distances: (n,) contiguous, to one query, less any constant.
        best: the least distance of all images there are, so that t is at most 1.
        gain: 1 / (2 sigma^2).
        out: (n,) where to write t.
    """
    sums: tuple[float, float, float] = _tempered(
        distances, np.float32(best), np.float32(gain / TEMPERATURE), out
    )
    return sums


def taken(
    tempered: NDArray[np.float32], mixture: Mixture, uniform: NDArray[np.float32], expected: int
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ascending places drawn with p = min(1, a t^T + b t + e), and their p, about ``expected``."""
    room = int(expected + 6 * expected**0.5) + 64
    while True:
        places, chances = np.empty(room, np.int64), np.empty(room, np.float32)
        count = _taken(tempered, *mixture, uniform, places, chances)
        if count <= room:
            return places[:count], chances[:count]
        room = min(len(tempered), 2 * room)
