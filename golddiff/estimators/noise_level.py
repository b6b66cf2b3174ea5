"""Estimation of the noise level of measurements from their roughness.

Roughness is the median of absolute second differences, along rows and, for pictures, along columns
too (Immerkaer 1996); edges and gaps hardly change a median. To account for texture and the
operator, noise is added to simulated measurements of training images until they are as rough.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from golddiff.samplers import initial_noise
from golddiff.sources.picture import jpeg_error
from golddiff.store.images import ImageStore
from golddiff.store.likelihood import applied, as_call
from golddiff.system.errors import ArgumentError

REFERENCE = 200  # number of training images used as reference
QUANTILE = 0.95  # quantile of their roughness up to which a picture counts as clean
HALVINGS = 20


def estimated_noise(store: ImageStore, operator: Any, y: torch.Tensor) -> tuple[float, float]:
    """An estimate of the common noise level of measurements, and the smallest detectable level.

    Args:
        store: the training set, assumed to be noise-free.
        operator: A, a callable on images (b, *shape), or a deepinv physics.
        y: (B, *measured), at least three values in the last dimension.

    Returns:
        (noise, least): standard deviations in units of y, of the values that depend on the image.
        Noise below ``least`` is indistinguishable from texture; noise is 0 if y is no rougher than
        95% of training images.

    Raises:
        ArgumentError: y has too few values, or the operator fails or returns another shape.
    """
    if y.ndim < 2 or y.shape[-1] < 3:
        raise ArgumentError(f"noise: cannot be judged from y {tuple(y.shape)}; give it")
    rows = np.unique(np.linspace(0, store.n - 1, REFERENCE).round().astype(np.int64))
    forward, measured = as_call(operator), tuple(y.shape[1:])
    clean = applied(forward, store.images(rows), measured).detach().cpu()
    # Values that do not depend on the image, such as holes, say nothing of the noise.
    probes = applied(forward, initial_noise(2, store.shape, 0), measured).detach().cpu()
    depends, known = (first != second for first, second in (probes, _differences(probes)))
    if not known.any():
        return 0.0, 0.0
    eps = initial_noise(len(clean), measured, 0) * depends

    def roughness(values: torch.Tensor) -> torch.Tensor:
        return _differences(values)[:, known].abs().median(dim=1).values

    def level(target: float) -> float:
        low, high = 0.0, 2 * target  # roughness is at least 0.67 times the noise level
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if float(roughness(clean + middle * eps).median()) < target:
                low = middle
            else:
                high = middle
        return high

    usual = float(roughness(clean).quantile(QUANTILE))
    found = float(roughness(torch.where(depends, y.detach().cpu(), clean[0])).median())
    return level(found) if found > usual else 0.0, level(usual)


def noise_of_file(
    store: ImageStore, operator: Any, y: torch.Tensor, *, upscale: int, blur: float, data: bytes
) -> tuple[float, float]:
    """:func:`estimated_noise` of y, read from the file ``data``.

    A blurred picture's JPEG error is added, which deblurring would amplify. Elsewhere it is not:
    holes and upscaling came out up to 10% worse with it.
    """
    noise, least = estimated_noise(store, operator, y[None])
    if not blur:
        return noise, least
    height, width = (side // upscale for side in store.shape[1:])
    return math.hypot(noise, jpeg_error(data, height, width)), least


def _differences(values: torch.Tensor) -> torch.Tensor:
    """The second differences of each of (b, *measured) values, along rows and columns."""
    differences = values.float().diff(n=2, dim=-1)
    if differences.ndim == 4 and differences.shape[-2] > 2:
        differences = differences.diff(n=2, dim=-2)
    return differences
