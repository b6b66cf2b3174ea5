"""The logits of images for queries, in plain torch and float64, so that they can be derived.

What :mod:`golddiff.store.exact` takes variances and derivatives from. A term is

    (query, places, logits, values): which of the queries (a slice of one), which of the images
    (m,), logits (1, m, L) without their log weights, and values (m, V), V a multiple of L;

everywhere ``x`` (b, D) are queries, ``gain`` (b, 1) 1 / (2 sigma^2), ``values`` (m, D) images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from golddiff.kernels.torch_kernels import box_sums, offsets
from golddiff.support import ABSENT
from golddiff.system.numbers import F64


@dataclass(frozen=True)
class Known:
    """What an earlier pass told of queries' posteriors, float64.

    Attributes:
        mean: (b, D); zeros where there was none.
        log_total: (b, L) log of the sum of the weights; -inf where there was none.
        logits: (b, m) of the images that are asked for, log weights and logits together; None: not
            kept.
    """

    mean: torch.Tensor
    log_total: torch.Tensor
    logits: F64 | None = None


Terms = Iterator[tuple[slice, Any, torch.Tensor, torch.Tensor]]


def pixel_terms(
    values: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    summed: Callable[[torch.Tensor], torch.Tensor],
    given: torch.Tensor,
) -> Terms:
    """A logit a location: squared differences (m, D), summed to (m, L); one query at a time.

    ``given`` (m, V) is what images give to the sums.
    """
    for q in range(len(x)):
        logits = -gain[q] * summed((values - x[q]).square())
        yield slice(q, q + 1), slice(None), logits[None], given


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
