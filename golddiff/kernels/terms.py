"""Differentiable logits of images for queries, in plain torch and float64.

:mod:`golddiff.store.exact` computes variances and derivatives from them. A term is

    (query, logits, values): the number of the query, its images' logits (m, L) without log
    weights, and their values (m, V), V a multiple of L.

Shared arguments: ``x`` (b, D) queries, ``gain`` (b, 1) 1 / (2 sigma^2), ``values`` (m, D) images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from golddiff.kernels.torch_kernels import box_sums, offsets
from golddiff.support import ABSENT
from golddiff.system.numbers import F64


@dataclass(frozen=True)
class FirstPass:
    """Results of earlier passes over queries' posteriors, float64.

    Attributes:
        mean: (b, D) posterior means; zeros in the first pass.
        log_total: (b, L) log of the sum of the weights; -inf in the first pass.
        logits: (b, m) logits plus log weights of the current images; None if not kept.
    """

    mean: torch.Tensor
    log_total: torch.Tensor
    logits: F64 | None = None


Terms = Iterator[tuple[int, torch.Tensor, torch.Tensor]]


def pixel_terms(
    values: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    mask_product: Callable[[torch.Tensor], torch.Tensor],
    summands: torch.Tensor,
) -> Terms:
    """One logit per location; ``mask_product`` maps squared differences (m, D) to (m, L).

    ``summands`` (m, V) are the images' values in the weighted sums.
    """
    for q in range(len(x)):
        yield q, -gain[q] * mask_product((values - x[q]).square()), summands


def patch_terms(
    values: torch.Tensor,
    x: torch.Tensor,
    gain: torch.Tensor,
    shape: tuple[int, int, int],
    size: int,
    boundary: str,
) -> Terms:
    """One logit per pixel and offset between positions; see ``torch_kernels.patches``."""
    images = values.reshape(-1, *shape)
    for q, query in enumerate(x.reshape(-1, *shape)):
        for shifted, compared in offsets(images, size, boundary):
            sums = box_sums((query - shifted).square().sum(dim=1), size, boundary)
            logits = torch.where(compared, -gain[q] * sums, ABSENT)
            yield q, logits.flatten(1), shifted.flatten(1)
