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
    gain = precision(sigma)
    best = float(distances.min())
    near = up_to(distances, best + NEGLIGIBLE * TEMPERATURE / gain)
    logits = -gain * (distances[near].astype(np.float64) - best)
    exact, tempered = np.exp(logits), np.exp(logits / TEMPERATURE)
    equal = SHARES[2] / n
    weights = SHARES[0] / exact.sum() * exact + SHARES[1] / tempered.sum() * tempered + equal
    c = _factor(weights, equal, n - len(near), count)
    p_near, p_far = np.minimum(1.0, c * weights), min(1.0, c * equal)
    chosen_near = uniform[near] < p_near
    # Strictly below, as above: the largest float32 that is.
    below = np.nextafter(np.float32(p_far), np.float32(-1)) if p_far < 1 else np.float32(1)
    passed = up_to(uniform, float(below))
    far = passed[~_within(passed, near)]
    places = np.concatenate([near[chosen_near], far])
    p = np.concatenate([p_near[chosen_near], np.full(len(far), p_far)])
    if len(places) == 0:
        places, p = near[np.argmax(weights)][None], np.ones(1)
    order = np.argsort(places)
    return Support(rows[places[order]], -np.log(p[order]))


def _within(values: NDArray[np.int64], among: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether each of the values is among ascending, non-empty others."""
    at = np.minimum(np.searchsorted(among, values), len(among) - 1)
    inside: NDArray[np.bool_] = among[at] == values
    return inside


def _factor(weights: NDArray[np.float64], equal: float, others: int, count: int) -> float:
    """C such that min(1, c w) over the weights and the others' equal ones sums to ``count``."""
    total = float(weights.sum()) + others * equal
    c = count / total
    # Those that are sure at one c are sure at the next, larger one: their number only grows.
    while True:
        sure = c * weights >= 1
        number = int(np.count_nonzero(sure))
        rest = total - float(weights[sure].sum())
        if number >= count or rest <= 0:
            return c
        larger = (count - number) / rest
        if larger <= c * (1 + 1e-12):
            return c
        c = larger
