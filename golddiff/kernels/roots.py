"""Squared differences, and their factors, as the kernels sum them over masks or boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from golddiff.noise import precision
from golddiff.system.numbers import F32

FAR = 50  # (10 sigma)^2 / (2 sigma^2): farther than noise reaches


def roots(x: F32, sigma: float) -> tuple[F32, F32]:
    """Arrays a, b such that (y - a)(y - b) replaces (y - x)^2 for the values y of an image.

    With a = b = x they are equal. With a = 2x, b = 0 the product lacks x^2, which all images share.
    """
    x = np.ascontiguousarray(x)  # a selection of columns is not, and loops compile once for both
    shared = _shared(x, precision(sigma))
    return x + shared, x - shared


def squares(values: Any, query: Any, gain: float) -> Any:
    """(values - query)^2 of images (k, D), NumPy's or torch's, as the product of :func:`roots`.

    ``gain`` is 1 / (2 sigma^2).
    """
    if gain >= 2:
        return (values - query) ** 2
    shared = _shared(query, gain)
    if (shared == query).all():  # one pass less
        return values * (values - 2 * query)
    return (values - (query + shared)) * (values - (query - shared))


def _shared(x: Any, gain: float) -> Any:
    """Values x whose squares are left out, else 0.

    Where noise outweighs the values, x^2 costs digits. Where x is beyond noise, values are large,
    and squares of their differences have more digits than y (y - 2x).
    """
    return x * ((gain < 2) & (min(gain, 2) * x * x < FAR))
