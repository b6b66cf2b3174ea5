"""Images drawn at random by weight: an exact head and an unbiased tail in one draw.

Image i is in with probability p_i, apart from the others, and then stands for 1 / p_i images; both
sums of the posterior mean have the full scan's sums as their expectations, however p_i is chosen
(Horvitz & Thompson 1952). Images of p_i = 1 are the exact head.

p_i = min(1, c w_i) with w a mixture: the posterior's weights by approximate distances; the same
at a higher temperature, since a tile's outputs do not weigh exactly as the tile's mean does; and
equal weights, which bound the weight 1 / p_i of an image that the distances misjudge.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.weights import Mixture, sure, taken, tempered_weights
from golddiff.noise import precision
from golddiff.support import Support

ENOUGH = 1e-6  # relative; sums of float32 numbers tell no more
SHARES = (0.5, 0.3, 0.2)  # of the posterior, the tempered one, the equal weights

_here = threading.local()


def draw(
    distances: NDArray[np.float32],
    rows: NDArray[np.int64],
    count: int,
    sigma: float,
    uniform: NDArray[np.float32],
) -> Support:
    """About ``count`` of the images, each with log weight -log p_i.

    Args:
        distances: (n,) distances to one query, less any constant.
        rows: (n,) the images, ascending.
        count: expected number of images, below n.
        sigma: noise level.
        uniform: (n,) uniform numbers in [0, 1), which decide.
    """
    places, p = places_drawn(distances, len(rows), count, precision(sigma), uniform)
    if len(places) == 0:
        places, p = np.array([np.argmin(distances)]), np.ones(1, np.float32)
    return Support(rows[places], -np.log(p.astype(np.float64)))


def places_drawn(
    distances: NDArray[np.float32],
    images: int,
    count: int,
    gain: float,
    uniform: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Ascending places of about ``count`` distances, which may be none, and their probabilities.

    Args:
        distances: (n,) to one query, less any constant.
        images: how many of them count.
        count: expected number, below that.
        gain: 1 / (2 sigma^2).
        uniform: (n,) uniform numbers in [0, 1), which decide.
    """
    best = float(distances.min())
    tempered, exact_sum, tempered_sum = tempered_weights(
        distances, best, gain, _room(len(distances))
    )
    mixture = mixture_of(exact_sum, tempered_sum, images)
    return taken(tempered, mixture, factor(tempered, mixture, count), uniform, count)


def _room(n: int) -> NDArray[np.float32]:
    """Memory (n,) of this thread, used again: new memory takes as long as filling it."""
    room: NDArray[np.float32] | None = getattr(_here, "room", None)
    if room is None or len(room) < n:
        room = _here.room = np.empty(n, np.float32)
    return room[:n]


def mixture_of(exact_sum: float, tempered_sum: float, n: float) -> Mixture:
    """The shares of t^T, of t and of one in an image's weight, given the sums over all n images."""
    a, b, e = SHARES
    return np.float32(a / exact_sum), np.float32(b / tempered_sum), np.float32(e / n)


def factor(tempered: NDArray[np.float32], mixture: Mixture, count: int) -> float:
    """C such that min(1, c w) over all images, whose weights w sum to 1, sums to ``count``."""
    c = count / sum(SHARES)
    if c * sum(map(float, mixture)) < 1:  # not even the nearest image is in for sure
        return c
    while True:
        larger = larger_factor(c, count, *sure(tempered, mixture, c))
        if larger is None:
            return c
        c = larger


def larger_factor(c: float, count: int, number: float, rest: float) -> float | None:
    """The next c, where ``number`` images are sure at this one; None: it is found.

    Those that are sure at one c are sure at the next, larger one: their number only grows.

    Args:
        c: that was tried.
        count: expected number of images.
        number: how many images are sure.
        rest: sum of the others' weights. Not the sum of all less that of the sure ones: where
            nearly all weight is sure, that difference is rounding alone.
    """
    if number >= count or rest <= 0:
        return None
    larger = (count - number) / rest
    return larger if larger > c * (1 + ENOUGH) else None
