"""The masked posterior in plain torch, on any device: the twin that the Triton kernel equals.

Also the way of GPUs without Triton: one float32 matrix product for each chunk of images.
"""

from __future__ import annotations

import torch

from golddiff.kernels.mask_blocks import MaskBlocks
from golddiff.kernels.masked_terms import Terms
from golddiff.kernels.partial import Partial

CHUNK_BYTES = 1 << 28  # of terms and logits together


def masked_partials(
    pixels: torch.Tensor,
    rows: torch.Tensor,
    log_weights: torch.Tensor | None,
    terms: Terms,
    mask: MaskBlocks,
    scale: float,
    offset: float,
    part_size: int | None = None,
) -> Partial:
    """Partial posteriors of consecutive parts of a support.

    Arguments and result as :func:`golddiff.kernels.masked_triton.masked_partials`; terms are kept
    in float32 whatever ``terms.parts`` says, and ``part_size=None`` is one part.
    """
    k = rows.shape[1]
    size = part_size or k
    matrix = mask.dense().to(torch.float32)
    partials = [
        _part(pixels, rows[:, i : i + size], _columns(log_weights, i, size), terms, matrix)
        for i in range(0, k, size)
    ]
    log_max = torch.stack([p.log_max for p in partials])
    total = torch.stack([p.total for p in partials])
    weighted = torch.stack([p.weighted for p in partials])
    return Partial(log_max, total, weighted * scale + total * offset)


def _part(
    pixels: torch.Tensor,
    rows: torch.Tensor,
    log_weights: torch.Tensor | None,
    terms: Terms,
    matrix: torch.Tensor,
) -> Partial:
    b, d = terms.first.shape
    step = max(1, CHUNK_BYTES // (12 * b * d))
    done: Partial | None = None
    for i in range(0, rows.shape[1], step):
        # (1 or b, c, D), the only array with both images and values, CHUNK_BYTES at most.
        stored = pixels[rows[:, i : i + step].long(), :d].to(torch.float32)
        scaled = stored * terms.unit[:, None, None] + terms.shift[:, None, None]
        u = (scaled - terms.first[:, None]) * (scaled - terms.second[:, None])
        logits = (u @ matrix) * terms.gain[:, None, None]
        prior = _columns(log_weights, i, step)
        if prior is not None:
            logits = logits + prior[:, :, None]
        log_max = logits.amax(dim=1)
        safe = torch.where(torch.isneginf(log_max), torch.zeros_like(log_max), log_max)
        weights = torch.exp(logits - safe[:, None])
        part = Partial(log_max, weights.sum(dim=1), (weights * stored).sum(dim=1))
        done = part if done is None else done.merge(part)
    if done is None:
        raise ZeroDivisionError("the posterior mean of no images is not defined")
    return done


def _columns(values: torch.Tensor | None, start: int, size: int) -> torch.Tensor | None:
    return None if values is None else values[:, start : start + size]
