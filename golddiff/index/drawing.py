"""Images drawn at random by weight through the index: as :mod:`golddiff.adaptive.drawing`, but in
two steps, so that clusters next to the query are not all that is looked at.

First candidates. Members of opened clusters all are. Of a closed cluster each image is one with
the same probability p, by the cluster's mean distance: of n images a run of n p (rounded at
random), from a place chosen at random in an order that is itself random. Where n p is less than a
few, a run of a few is taken now and then instead: reading one image takes as long.

Then candidates' own distances are compared, and each is drawn by its weight: with probability q,
and stands for 1 / (p q) images. Given any candidates the second step is unbiased, and so is the
first; so are both.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from golddiff.adaptive.drawing import SHARES, larger_factor
from golddiff.index.search import Near, Sight
from golddiff.kernels.weights import TEMPERATURE
from golddiff.noise import precision
from golddiff.support import Support

CANDIDATES = 8  # of closed clusters, for each image that is drawn
FEWEST = 1024  # of these candidates
RUN = 8  # images of a closed cluster at a time, at least

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB

Counts = Callable[[NDArray[np.int64]], NDArray[np.bool_]]


def key_of(stream: tuple[int, ...]) -> int:
    """64 bits that stand for a stream's seeds."""
    return int(np.random.SeedSequence(stream).generate_state(1, np.uint64)[0])


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
    counts: Counts,
    count: int,
    sigma: float,
    key: int,
) -> Support:
    """About ``count`` images, each with log weight -log p_i, ascending.

    Args:
        sight: of the location, for images of closed clusters.
        near: what it sees; none of its images that does not count.
        counts: which of some images may be drawn: those of a class.
        count: expected number of images.
        sigma: noise level.
        key: decides, 64 bits.
    """
    gain = precision(sigma)
    rows, distances, p = _candidates(sight, near, candidates(count), gain, key)
    may = counts(rows)
    rows = np.concatenate([near.rows, rows[may]])
    distances = np.concatenate([near.distances, distances[may]])
    p = np.concatenate([np.ones(len(near.rows)), p[may]])
    return drawn_of(rows, distances, p, count, gain, uniform(key, rows))


def drawn_of(
    rows: NDArray[np.int64],
    distances: NDArray[np.float32],
    p: NDArray[np.float64],
    count: int,
    gain: float,
    uniform: NDArray[np.float64],
    shares: tuple[float, float, float] = SHARES,
) -> Support:
    """About ``count`` of some candidates, each with its log weight, ascending.

    Args:
        rows: (n,) the candidates.
        distances: (n,) to the query, less any constant.
        p: (n,) the probability that each had to be one.
        count: expected number of images.
        gain: 1 / (2 sigma^2).
        uniform: (n,) uniform numbers in [0, 1), which decide.
        shares: of the posterior, the tempered one and equal weights.
    """
    weights = _weights(distances, 1 / p, gain, shares) / p
    q = np.minimum(1.0, factor(weights, np.ones(len(rows)), count) * weights)
    drawn = uniform < q
    if not drawn.any():
        drawn[np.argmax(weights)], p, q = True, np.ones(len(rows)), np.ones(len(rows))
    chosen = np.flatnonzero(drawn)
    chosen = chosen[np.argsort(rows[chosen])]
    return Support(rows[chosen], -np.log(p[chosen] * q[chosen]))


def candidates(count: int) -> int:
    """How many images of closed clusters are compared, about, for ``count`` that are drawn."""
    return max(FEWEST, CANDIDATES * count)


def _candidates(
    sight: Sight, near: Near, count: int, gain: float, key: int
) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float64]]:
    """About ``count`` images of closed clusters, their distances, and their probabilities."""
    if len(near.closed) == 0:
        return np.empty(0, np.int64), np.empty(0, np.float32), np.empty(0)
    sizes = sight.sizes[near.closed]
    weights = _weights(near.far, sizes.astype(np.float64), gain)
    expected = sizes * np.minimum(1.0, factor(weights, sizes.astype(np.float64), count) * weights)
    run = np.minimum(RUN, sizes)
    shift, start = uniform(key + 1, near.closed), uniform(key + 2, near.closed)
    taken = np.where(
        expected >= run, np.floor(expected + shift), np.where(shift < expected / run, run, 0)
    )
    there = np.flatnonzero(taken)
    number = np.minimum(taken, sizes)[there].astype(np.int64)
    first = (start * sizes)[there].astype(np.int64)
    rows, distances = sight.members(near.goal, sight.runs(near.closed[there], first, number))
    return rows, distances, np.repeat((expected / sizes)[there], number)


def _weights(
    distances: NDArray[np.float32],
    many: NDArray[np.float64],
    gain: float,
    shares: tuple[float, float, float] = SHARES,
) -> NDArray[np.float64]:
    """Shares of the posterior, the tempered one and equal ones, of ``many`` images each."""
    logits = -gain * (distances - distances.min()).astype(np.float64)
    exact, tempered = np.exp(logits), np.exp(logits / TEMPERATURE)
    sums = float(exact @ many), float(tempered @ many), float(many.sum())
    a, b, e = (share / total for share, total in zip(shares, sums, strict=True))
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
