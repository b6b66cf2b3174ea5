"""Images drawn at random by weight through the index: as :mod:`golddiff.adaptive.drawing`, but the
images of clusters that were not opened share their cluster's weight, and none of them is looked at
that is not drawn.

Of a closed cluster of n images with probability p each, a run of n p images is taken (rounded at
random) from a place chosen at random in an order that is itself random: each image is in it with
probability p.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.drawing import larger_factor, shares_of
from golddiff.index.search import Near, Sight
from golddiff.kernels.weights import TEMPERATURE
from golddiff.noise import precision
from golddiff.support import Support

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def uniform(key: int, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """A number in [0, 1) for each integer, the same for the same key (splitmix64)."""
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) * np.uint64(_GOLDEN) + np.uint64(key & (2**64 - 1))
        z = (z ^ (z >> np.uint64(30))) * np.uint64(_FIRST)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(_SECOND)
        z = z ^ (z >> np.uint64(31))
    mapped: NDArray[np.float64] = (z >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return mapped


def draw(
    sight: Sight,
    near: Near,
    share: float,
    count: int,
    sigma: float,
    key: int,
) -> Support:
    """About ``count`` images, each with log weight -log p_i, ascending.

    Args:
        sight: of the location, for images of closed clusters.
        near: what it sees.
        share: of the images of closed clusters that count: where one class is drawn, the caller
            drops the others.
        count: expected number of images.
        sigma: noise level.
        key: decides, 64 bits.
    """
    gain = precision(sigma)
    best = min(float(near.distances.min(initial=np.inf)), float(near.far.min(initial=np.inf)))
    opened, sizes = len(near.rows), sight.sizes[near.closed]
    many = np.concatenate([np.ones(opened), share * sizes])
    weights = _weights(near, many, gain, best)
    p = np.minimum(1.0, factor(weights, many, count) * weights)
    inside = uniform(key, near.rows) < p[:opened]
    rows, chances = [near.rows[inside]], [p[:opened][inside]]
    shift = uniform(key + 1, near.closed)
    start = uniform(key + 2, near.closed)
    counts = np.floor(sizes * p[opened:] + shift).astype(np.int64)
    for i in np.flatnonzero(counts):
        first = int(start[i] * sizes[i])
        rows.append(sight.run(int(near.closed[i]), first, int(min(counts[i], sizes[i]))))
        chances.append(np.full(len(rows[-1]), p[opened + i]))
    chosen, chance = np.concatenate(rows), np.concatenate(chances)
    if len(chosen) == 0:
        nearest = int(np.argmin(near.distances))
        chosen, chance = near.rows[[nearest]], np.ones(1)
    order = np.argsort(chosen)
    return Support(chosen[order], -np.log(chance[order]))


def _weights(
    near: Near, many: NDArray[np.float64], gain: float, best: float
) -> NDArray[np.float64]:
    """Shares of the posterior, the tempered one and equal ones, by estimated distances."""
    distances = np.concatenate([near.distances, near.far]).astype(np.float64)
    logits = -gain * (distances - best)
    exact, tempered = np.exp(logits), np.exp(logits / TEMPERATURE)
    a, b, e = shares_of(float(exact @ many), float(tempered @ many), float(many.sum()))
    weights: NDArray[np.float64] = a * exact + b * tempered + e
    return weights


def factor(weights: NDArray[np.float64], many: NDArray[np.float64], count: int) -> float:
    """C such that the sum of many * min(1, c weights) is ``count``, or all are sure before."""
    mass = weights * many
    c = count / float(mass.sum())
    while True:
        sure = c * weights >= 1
        larger = larger_factor(c, count, float(many[sure].sum()), float(mass[~sure].sum()))
        if larger is None:
            return c
        c = larger
