"""Gathered rows in plain torch, on any device: the twin of the Triton kernels."""

from __future__ import annotations

import torch

CHUNK_BYTES = 1 << 28


def squared_distances(
    pixels: torch.Tensor, rows: torch.Tensor, x: torch.Tensor, shift: float
) -> torch.Tensor:
    """As :func:`golddiff.kernels.gather_triton.squared_distances`."""
    b, d = x.shape
    out = torch.empty((b, rows.shape[1]), dtype=torch.float32, device=pixels.device)
    step = max(1, CHUNK_BYTES // (8 * b * d))
    for i in range(0, rows.shape[1], step):
        stored = pixels[rows[:, i : i + step].long(), :d].to(torch.float32)
        difference = (stored + shift) - x[:, None]
        out[:, i : i + step] = difference.square().sum(dim=2, dtype=torch.float64).float()
    return out


def weighted_sums(
    pixels: torch.Tensor, rows: torch.Tensor, weights: torch.Tensor, d: int
) -> torch.Tensor:
    """As :func:`golddiff.kernels.gather_triton.weighted_sums`."""
    out = torch.zeros((len(weights), d), dtype=torch.float32, device=pixels.device)
    step = max(1, CHUNK_BYTES // (8 * len(rows) * d))
    for i in range(0, rows.shape[1], step):
        stored = pixels[rows[:, i : i + step].long(), :d].to(torch.float32)
        part = weights[:, i : i + step]
        if len(rows) == 1:
            out += part @ stored[0]
        else:
            out += torch.einsum("bk,bkd->bd", part, stored)
    return out
