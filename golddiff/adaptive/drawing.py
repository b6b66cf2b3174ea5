"""Images drawn at random by weight: an exact head and an unbiased tail in one draw.

Image i is in with probability p_i, apart from the others, and then stands for 1 / p_i images; both
sums of the posterior mean have the full scan's sums as their expectations, however p_i is chosen
(Horvitz & Thompson 1952). Images of p_i = 1 are the exact head.

p_i = min(1, c w_i) with w a mixture: the posterior's weights by approximate distances; the same
at a higher temperature, since a tile's outputs do not weigh exactly as the tile's mean does; and
equal weights, which bound the weight 1 / p_i of an image that the distances misjudge.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.lowest import up_to
from golddiff.noise import precision
from golddiff.support import Support

SHARES = (0.5, 0.3, 0.2)  # of the posterior, the tempered one, the equal weights
TEMPERATURE = 5.0
NEGLIGIBLE = 12.0  # nats, tempered: exp(-12) of the largest weight, far below the equal weights


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
    n = len(rows)
    near, exact, tempered = masses(distances, float(distances.min()), sigma)
    weights = mixture(exact, tempered, float(exact.sum()), float(tempered.sum()), n)
    c = _factor(weights, SHARES[2] / n, n - len(near), count)
    places, p = taken(near, weights, c, n, uniform)
    if len(places) == 0:
        places, p = near[np.argmax(weights)][None], np.ones(1)
    return Support(rows[places], -np.log(p))


def masses(
    distances: NDArray[np.float32], best: float, sigma: float
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Places near enough to count, and their weights to a common factor: exact and tempered.

    Args:
        distances: (n,) to one query, less any constant.
        best: the least distance of all images there are.
        sigma: noise level.
    """
    gain = precision(sigma)
    near = up_to(distances, best + NEGLIGIBLE * TEMPERATURE / gain)
    logits = -gain * (distances[near].astype(np.float64) - best)
    return near, np.exp(logits), np.exp(logits / TEMPERATURE)


def mixture(
    exact: NDArray[np.float64],
    tempered: NDArray[np.float64],
    exact_sum: float,
    tempered_sum: float,
    n: float,
) -> NDArray[np.float64]:
    """The weights w of near images, given the sums over all n images there are."""
    mixed: NDArray[np.float64] = (
        SHARES[0] / exact_sum * exact + SHARES[1] / tempered_sum * tempered + SHARES[2] / n
    )
    return mixed


def taken(
    near: NDArray[np.int64],
    weights: NDArray[np.float64],
    c: float,
    n: int,
    uniform: NDArray[np.float32],
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Ascending places drawn with p = min(1, c w), and their p.

    Args:
        near: places whose weights are not the equal ones alone.
        weights: theirs.
        c: see :func:`_factor`.
        n: how many images there are, of which ``uniform`` may cover a part.
        uniform: uniform numbers in [0, 1), which decide.
    """
    p_near, p_far = np.minimum(1.0, c * weights), min(1.0, c * SHARES[2] / n)
    chosen_near = uniform[near] < p_near
    # Strictly below, as above: the largest float32 that is.
    below = np.nextafter(np.float32(p_far), np.float32(-1)) if p_far < 1 else np.float32(1)
    passed = up_to(uniform, float(below))
    far = passed[~_within(passed, near)] if len(near) else passed
    places = np.concatenate([near[chosen_near], far])
    p = np.concatenate([p_near[chosen_near], np.full(len(far), p_far)])
    order = np.argsort(places)
    return places[order], p[order]


def _within(values: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each of the values is among ascending, non-empty others."""
    at = np.minimum(np.searchsorted(among, values), len(among) - 1)
    inside: NDArray[np.bool_] = among[at] == values
    return inside


def _factor(weights: NDArray[np.float64], equal: float, others: int, count: int) -> float:
    """C such that min(1, c w) over the weights and the others' equal ones sums to ``count``."""
    total = float(weights.sum()) + others * equal
    c = count / total
    while True:
        larger = larger_factor(c, total, count, *sure(weights, c))
        if larger is None:
            return c
        c = larger


def sure(weights: NDArray[np.float64], c: float) -> tuple[int, float]:
    """How many weights w have c w >= 1, and their sum."""
    chosen = c * weights >= 1
    return int(np.count_nonzero(chosen)), float(weights[chosen].sum())


def larger_factor(c: float, total: float, count: int, number: float, mass: float) -> float | None:
    """The next c, where ``number`` weights of sum ``mass`` are sure at this one; None: it is found.

    Those that are sure at one c are sure at the next, larger one: their number only grows.
    """
    rest = total - mass
    if number >= count or rest <= 0:
        return None
    larger = (count - number) / rest
    return None if larger <= c * (1 + 1e-12) else larger
