"""Weights of images drawn at random, from their distances: compiled passes over all images.

An image's tempered weight is t = exp(-(d - best) g / T), T a temperature, and its weight by itself
is t^T: one exponential gives both. See :mod:`golddiff.adaptive.drawing`.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.lanes import LANES, any_above, exp, load, ones_at_least, spread, store, sum_of

PART = 256 * LANES  # images whose weights are summed in float32
TEMPERATURE = 5  # a whole number: the exact weight is that power of the tempered one

Mixture = tuple[np.float32, np.float32, np.float32]


@njit(nogil=True, cache=True)
def _tempered(distances, best, gain, out):  # type: ignore[no-untyped-def]
    """Write t; the sums of t^5 and t, each 16 images' in float32 and those in float64."""
    exact_sum, tempered_sum = 0.0, 0.0
    least, gains = spread(best), spread(-gain)
    whole = len(distances) // LANES * LANES
    for i in range(0, whole, LANES):
        t = exp((load(distances, i) - least) * gains)
        store(out, i, t)
        square = t * t
        exact_sum += np.float64(sum_of(square * square * t))
        tempered_sum += np.float64(sum_of(t))
    for i in range(whole, len(distances)):
        u = np.exp((distances[i] - best) * -gain)
        out[i] = u
        exact_sum += np.float64(u * u * u * u * u)
        tempered_sum += np.float64(u)
    return exact_sum, tempered_sum


@njit(nogil=True, cache=True)
def _sure(tempered, a, b, e, c):  # type: ignore[no-untyped-def]
    count, rest = 0.0, 0.0
    one = np.float32(1.0)
    nothing, ones = spread(np.float32(0.0)), spread(one)
    many_a, many_b, many_e, factors = spread(a), spread(b), spread(e), spread(c)
    whole = len(tempered) // LANES * LANES
    for start in range(0, whole, PART):
        some = held = nothing
        for i in range(start, min(start + PART, whole), LANES):
            t = load(tempered, i)
            square = t * t
            weight = many_a * (square * square * t) + many_b * t + many_e
            inside = ones_at_least(weight * factors, one)
            some = some + inside
            held = held + (ones - inside) * weight
        count += np.float64(sum_of(some))
        rest += np.float64(sum_of(held))
    for i in range(whole, len(tempered)):
        u = tempered[i]
        last = a * (u * u * u * u * u) + b * u + e
        if c * last >= one:
            count += 1.0
        else:
            rest += np.float64(last)
    return count, rest


@njit(nogil=True, cache=True)
def _taken(tempered, a, b, e, c, uniform, places, chances):  # type: ignore[no-untyped-def]
    """Write the places drawn; how many, or one more than there is room."""
    count, room = 0, len(places)
    many_a, many_b, many_e, factors = spread(a), spread(b), spread(e), spread(c)
    whole = len(tempered) // LANES * LANES
    for start in range(0, len(tempered), LANES):
        if start < whole:
            t = load(tempered, start)
            square = t * t
            weight = many_a * (square * square * t) + many_b * t + many_e
            # Numbers are below 1, so that chances need no bound here.
            if not any_above(weight * factors - load(uniform, start), np.float32(0.0)):
                continue
        for i in range(start, min(start + LANES, len(tempered))):
            u = tempered[i]
            chance = min(np.float32(1.0), c * (a * (u * u * u * u * u) + b * u + e))
            if uniform[i] < chance:
                if count == room:
                    return room + 1
                places[count], chances[count] = i, chance
                count += 1
    return count


def tempered_weights(
    distances: NDArray[np.float32],
    best: float,
    gain: float,
    out: NDArray[np.float32] | None = None,
) -> tuple[NDArray[np.float32], float, float]:
    """Tempered weights t (n,), and the sums of t^T and of t.

    Args:
        distances: (n,) to one query, less any constant.
        best: the least distance of all images there are, so that t is at most 1.
        gain: 1 / (2 sigma^2).
        out: (n,) where to write t; None: a new array.
    """
    if out is None:
        out = np.empty(len(distances), np.float32)
    distances = np.ascontiguousarray(distances)  # the compiled loop looks at no strides
    sums = _tempered(distances, np.float32(best), np.float32(gain / TEMPERATURE), out)
    return out, *sums


def sure(tempered: NDArray[np.float32], mixture: Mixture, c: float) -> tuple[int, float]:
    """How many weights w = a t^T + b t + e have c w >= 1, and the sum of the others."""
    count, rest = _sure(tempered, *mixture, np.float32(c))
    return int(count), float(rest)


def taken(
    tempered: NDArray[np.float32],
    mixture: Mixture,
    c: float,
    uniform: NDArray[np.float32],
    expected: int,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ascending places drawn with p = min(1, c w), and their p.

    Args:
        tempered: (n,) t.
        mixture: (a, b, e) of w = a t^T + b t + e.
        c: the factor.
        uniform: (n,) uniform numbers in [0, 1), which decide.
        expected: about how many are drawn.
    """
    room = int(expected + 6 * expected**0.5) + 64
    uniform = np.ascontiguousarray(uniform)
    while True:
        places, chances = np.empty(room, np.int64), np.empty(room, np.float32)
        count = _taken(tempered, *mixture, np.float32(c), uniform, places, chances)
        if count <= room:
            return places[:count], chances[:count]
        room = min(len(tempered), 2 * room)
