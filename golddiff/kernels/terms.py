"""The logits of images for queries, in plain torch and float64, so that they can be derived.

What :mod:`golddiff.store.exact` takes variances and derivatives from. A term is

    (queries, places, logits, values): which of the queries (a slice), which of the images (m,),
    logits (b, m, L) without their log weights, and values (m, V), V a multiple of L;

everywhere ``x`` (b, D) are queries, ``gain`` (b, 1) 1 / (2 sigma^2), ``values`` (m, D) images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.kernels.torch_kernels import box_sums, offsets

Terms = Iterator[tuple[slice, Any, torch.Tensor, torch.Tensor]]
ABSENT = -1e300  # the logit of what is not compared: finite, so that its product with 0 is 0


def whole_terms(
    values: torch.Tensor,
    places: NDArray[np.int64],
    logits: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    mean: torch.Tensor,
) -> Terms:
    """One logit an image, whose value (b, m) was made elsewhere.

    The derivative in x is 2 gain (x_i - x), of which all images share 2 gain x: it is taken as
    2 gain (x_i - mean), which loses no digits where the mean is near.
    """
    if x.requires_grad:
        fixed = gain.detach()
        moved = x - x.detach()
        along = moved @ values.T - (moved * mean).sum(dim=1, keepdim=True)
        logits = logits * (gain / fixed) + 2 * fixed * along
    yield slice(None), places, logits[:, :, None], values


def pixel_terms(
    values: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    summed: Callable[[torch.Tensor], torch.Tensor],
) -> Terms:
    """A logit a location: squared differences (m, D), summed to (m, L); one query at a time."""
    for q in range(len(x)):
        logits = -gain[q] * summed((values - x[q]).square())
        yield slice(q, q + 1), slice(None), logits[None], values


def patch_terms(
    values: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    shape: tuple[int, int, int],
    size: int,
    boundary: str,
) -> Terms:
    """A logit a pixel and offset between two positions; see ``torch_kernels.patches``."""
    images = values.reshape(-1, *shape)
    for q, query in enumerate(x.reshape(-1, *shape)):
        for shifted, here in offsets(images, size, boundary):
            sums = box_sums((query - shifted).square().sum(dim=1), size, boundary)
            logits = torch.where(here, -gain[q] * sums, ABSENT).reshape(1, len(images), -1)
            yield slice(q, q + 1), slice(None), logits, shifted.reshape(len(images), -1)
