"""Fits of how a cost grows with the number of images."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats


def exponent(sizes: Sequence[float], costs: Sequence[float | None]) -> float | None:
    """The exponent p of cost ~ n^p: the least-squares slope of log cost against log size.

    None if fewer than two sizes have a cost, or if a cost is not positive.
    """
    known = [(n, cost) for n, cost in zip(sizes, costs, strict=True) if cost is not None]
    if len({n for n, _ in known}) < 2 or any(cost <= 0 for _, cost in known):
        return None
    n, cost = np.log(known).T
    return float(stats.linregress(n, cost).slope)


def ratio(costs: Sequence[float | None]) -> float | None:
    """The last cost divided by the first; None if either is missing or the first is 0."""
    first, last = costs[0], costs[-1]
    return None if first is None or last is None or first == 0 else last / first
