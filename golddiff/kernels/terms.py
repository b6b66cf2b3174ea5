"""Differentiable logits of images for queries, in plain torch and float64.

:mod:`golddiff.store.exact` computes variances and derivatives from them. A term is

    (query, logits, values): the number of the query, its images' logits (m, L) without log
    weights, and their values (m, V), V a multiple of L.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

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
