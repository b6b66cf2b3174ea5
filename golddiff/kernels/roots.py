"""Squared differences, and their factors, as the kernels sum them over masks or boxes."""

from __future__ import annotations

from typing import Any

import numpy as np

from golddiff.system.numbers import F32


def roots(x: F32, sigma: float) -> tuple[F32, F32]:
    """Arrays a, b such that (y - a)(y - b) replaces (y - x)^2 for the values y of an image.

    With a = b = x they are equal. With a = 2x, b = 0 the product lacks x^2, which all images share
    and which costs digits where noise outweighs the values, whose root mean square is about 0.5.
    """
    x = np.ascontiguousarray(x)  # a selection of columns is not, and loops compile once for both
    return (x + x, np.zeros_like(x)) if sigma > 0.5 else (x, x)


def squares(values: Any, query: Any, gain: float) -> Any:
    """(values - query)^2 of images (k, D), NumPy's or torch's, as the product of :func:`roots`.

    ``gain`` is 1 / (2 sigma^2).
    """
    return values * (values - 2 * query) if gain < 2 else (values - query) ** 2
