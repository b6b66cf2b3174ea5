"""Noise levels: sigma in EDM's convention, x = x0 + sigma * eps, and how VP steps map to it."""

from __future__ import annotations

import math
import threading
from bisect import bisect
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from diffusers import DDIMScheduler


Sigma = float | torch.Tensor  # one noise level, or one for each query
Labels = int | Sequence[int] | torch.Tensor | None  # one class, one for each query, or all images

# diffusers loads its parts when they are first asked for, and fails where two threads ask at once.
LOADING = threading.Lock()

EDM_LEAST, RHO = 0.002, 7.0  # EDM's last noise level, and how its levels are spaced
SAME_LEVEL = 1e-5  # relative; neighbouring timesteps are a hundred times as far apart, or more


def normalised_noise(sigma: float) -> float:
    """g(sigma) = sigma / sqrt(1 + sigma^2) = sqrt(1 - alpha), in (0, 1) (the authors' choice)."""
    return sigma / math.hypot(1.0, sigma)


def precision(sigma: float) -> float:
    """1 / (2 sigma^2), the factor of squared distances in every logit.

    Held at 1e18: past it the nearest image has all the weight, and float32 would overflow.
    """
    return min(0.5 / sigma / sigma, 1e18)


def hashed(seeds: tuple[int, ...], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random bits for each number >= 0, which hang on it and the seeds alone (splitmix64)."""
    key = np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0]
    with np.errstate(over="ignore"):
        z: NDArray[np.uint64] = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def bits(sigma: float) -> int:
    """The 64 bits of a noise level: a seed for random numbers of its own.

    Of a level next to one of the 1,000 timesteps, that one's: schedulers round them differently
    from processor to processor, and a seed must not follow.
    """
    levels = timestep_sigmas()
    place = bisect(levels, sigma)
    nearest = min(levels[max(0, place - 1) : place + 1], key=lambda level: abs(level - sigma))
    level = nearest if abs(nearest - sigma) < SAME_LEVEL * sigma else sigma
    return int(np.float64(level).view(np.uint64))


@cache
def timestep_sigmas() -> list[float]:
    """The noise level of each of the paper's 1,000 timesteps, ascending."""
    alphas = np.cumprod((np.float32(1) - _betas()).astype(np.float64)).astype(np.float32)
    return [sigma_of_alpha(float(alpha)) for alpha in alphas]


def _betas() -> NDArray[np.float32]:
    """1,000 betas from 1e-4 to 0.02 in float32, as diffusers has them.

    In an order of operations of our own: torch's linspace rounds differently from processor to
    processor.
    """
    first, last = np.float32(1e-4), np.float32(0.02)
    steps = np.float64(np.float32((last - first) / np.float32(999))) * np.arange(500)
    both = np.concatenate([np.float64(first) + steps, np.float64(last) - steps[::-1]])
    betas: NDArray[np.float32] = both.astype(np.float32)
    return betas


def sigma_of_alpha(alpha: float) -> float:
    """Sigma = sqrt((1 - alpha) / alpha), with alpha the cumulative product of a VP process."""
    return math.sqrt((1 - alpha) / alpha)


def alpha_of_sigma(sigma: float) -> float:
    """Alpha = 1 / (1 + sigma^2), the inverse of :func:`sigma_of_alpha`."""
    return 1 / (1 + sigma**2)


def ddim_scheduler(steps: int, *, clip: bool) -> DDIMScheduler:
    """Diffusers' DDIM scheduler as the paper and its peers set it, at timesteps 900, 800 ... 0.

    Args:
        steps: number of denoising steps.
        clip: clip predictions to [-1, 1]: right for pixels, not for latents or points.
    """
    with LOADING:
        from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(
        num_train_timesteps=1000,
        trained_betas=_betas(),
        prediction_type="sample",
        clip_sample=clip,
    )
    scheduler.set_timesteps(steps)
    return scheduler


def ddim_sigmas(steps: int) -> list[float]:
    """The noise levels of :func:`ddim_scheduler`, descending: 60.8 to 0.010 for 10 steps."""
    every = 1000 // steps
    return [timestep_sigmas()[i * every] for i in reversed(range(steps))]


def edm_sigmas(steps: int, sigma_max: float = 80.0) -> list[float]:
    """Karras et al. 2022, Eq. 5: levels evenly spaced in sigma^(1/7), down to 0.002."""
    high, low = sigma_max ** (1 / RHO), EDM_LEAST ** (1 / RHO)
    return [(high + i / max(steps - 1, 1) * (low - high)) ** RHO for i in range(steps)]
