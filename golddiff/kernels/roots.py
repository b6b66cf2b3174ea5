"""Factors of squared differences, for the kernels that sum them over masks or boxes."""

from __future__ import annotations

import numpy as np

from golddiff.system.numbers import F32

Values = F32


def roots(x: Values, sigma: float) -> tuple[Values, Values]:
    """Arrays a, b such that (y - a)(y - b) replaces (y - x)^2 for the values y of an image.

    With a = b = x they are equal. With a = 2x, b = 0 the product lacks x^2, which all images share
    and which costs digits at high noise.
    """
    return (x + x, np.zeros_like(x)) if sigma > 1 else (x, x)
