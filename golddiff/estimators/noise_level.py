"""How noisy measurements are, judged by how rough they are beside those of training images.

Roughness is the median of absolute second differences, along rows and, of pictures, along columns
too (Immerkaer 1996). Edges and gaps hardly move a median. What texture and operator add is known
from training images: noise is added to what the operator makes of them until they are as rough.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from golddiff.samplers import initial_noise
from golddiff.store.images import ImageStore
from golddiff.store.likelihood import applied, as_call
from golddiff.system.errors import ArgumentError

REFERENCE = 200  # training images compared with
USUAL = 0.95  # of them are no rougher than clean pictures may be
MOST = 2.0  # noise that is looked for: from white to black
HALVINGS = 20


def judged_noise(store: ImageStore, operator: Any, y: torch.Tensor) -> tuple[float, float]:
    """The standard deviation of the noise of measurements, one for all, and the least told.

    Args:
        store: the training set, taken to be without noise.
        operator: A, a callable on images (b, *shape), or a deepinv physics.
        y: (B, *measured), at least three values in the last dimension.

    Returns:
        (noise, least) in units of y. Noise below ``least`` cannot be told from texture; where y is
        no rougher than nineteen in twenty training images, 0 is returned.

    Raises:
        ArgumentError: too few values; an operator that fails or makes another shape.
    """
    if y.ndim < 2 or y.shape[-1] < 3:
        raise ArgumentError(f"noise: cannot be judged from y {tuple(y.shape)}; give it")
    rows = np.unique(np.linspace(0, store.n - 1, REFERENCE).round().astype(np.int64))
    clean = applied(as_call(operator), store.images(rows), tuple(y.shape[1:])).detach().cpu()
    eps = initial_noise(len(clean), clean.shape[1:], 0)

    def level(roughness: float) -> float:
        low, high = 0.0, MOST
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            if float(_roughness(clean + middle * eps).median()) < roughness:
                low = middle
            else:
                high = middle
        return high

    usual = float(_roughness(clean).quantile(USUAL))
    found = float(_roughness(y.detach().cpu()).median())
    return level(found) if found > usual else 0.0, level(usual)


def _roughness(values: torch.Tensor) -> torch.Tensor:
    """Of each of (b, *measured), (b,)."""
    bent = values.float().diff(n=2, dim=-1)
    if bent.ndim == 4 and bent.shape[-2] > 2:
        bent = bent.diff(n=2, dim=-2)
    return bent.abs().flatten(1).median(dim=1).values
