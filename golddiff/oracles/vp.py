"""The variance-preserving process of DDPM: 1000 steps, betas from 1e-4 to 0.02 on a line."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from golddiff.errors import ArgumentError

TIMESTEPS = 1000
# A level this near a training step, in steps, is that step: schedulers hold alphas in float32.
SAME_STEP = 0.01


@cache
def alphas() -> torch.Tensor:
    """alpha_t = prod_(s <= t) (1 - beta_s) for t = 0..999, float64 (Ho et al. 2020)."""
    betas = torch.linspace(1e-4, 0.02, TIMESTEPS, dtype=torch.float64)
    return (1 - betas).cumprod(0)


@cache
def step_sigmas() -> torch.Tensor:
    """Sigma of each timestep, sqrt((1 - alpha) / alpha): 0.010 to 157.4, ascending, float64."""
    return ((1 - alphas()) / alphas()).sqrt()


def timesteps_of(sigma: torch.Tensor) -> torch.Tensor:
    """The timestep of each noise level (B,), float64: fractional between two training steps.

    Interpolated in log sigma; a level within 0.01 of a training step is that step exactly. Below
    the first step's 0.010 it is 0.

    Raises:
        ArgumentError: a level above the last training step's.
    """
    table = step_sigmas().log()
    log = sigma.to("cpu", torch.float64).log()
    if bool((log > table[-1] + 1e-3).any()):
        raise ArgumentError(
            f"sigma: got {float(sigma.max()):g}, but this network was trained up to "
            f"{float(step_sigmas()[-1]):.1f}"
        )
    t = torch.from_numpy(np.interp(log.numpy(), table.numpy(), np.arange(TIMESTEPS)))
    whole = t.round()
    return torch.where((t - whole).abs() < SAME_STEP, whole, t)
