"""Exponential moving average of weights."""

from __future__ import annotations

import torch
from torch import nn

DECAY = 0.999


def ema_decay(step: int, decay: float = DECAY) -> float:
    """min(decay, (1 + step) / (10 + step)): short runs must not average in their start."""
    return min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def update_ema(average: nn.Module, network: nn.Module, step: int, decay: float = DECAY) -> None:
    """Set average <- d * average + (1 - d) * network, with d of the step (1, 2, ...), in place."""
    d = ema_decay(step, decay)
    pairs = zip(average.parameters(), network.parameters(), strict=True)
    for mean, value in pairs:
        if value.requires_grad:
            mean.lerp_(value.detach(), 1 - d)
