"""Noise levels: sigma in EDM's convention, x = x0 + sigma * eps, and its conversion from VP."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray

Sigma = float | torch.Tensor  # one noise level, or one per query
Labels = int | Sequence[int] | torch.Tensor | None  # one class, one per query, or all images

LEAST_SIGMA = 1e-9  # lower noise levels count as this one
EDM_SIGMA_MIN, RHO = 0.002, 7.0  # EDM's last noise level, and the exponent of its spacing
SAME_LEVEL = 1e-5  # relative; neighbouring timesteps differ at least a hundred times more


def normalised_noise(sigma: float) -> float:
    """g(sigma) = sigma / sqrt(1 + sigma^2) = sqrt(1 - alpha), in (0, 1) (the authors' choice)."""
    return sigma / math.hypot(1.0, sigma)


def precision(sigma: float) -> float:
    """1 / (2 sigma^2), the factor of squared distances in every logit.

    Levels below ``LEAST_SIGMA`` count as it: the nearest image has all the weight, and float32
    would overflow.
    """
    return 0.5 / max(sigma, LEAST_SIGMA) ** 2


def hash_bits(seeds: tuple[int, ...], numbers: NDArray[np.int64]) -> NDArray[np.uint64]:
    """64 random bits per number >= 0, a function of the number and the seeds (splitmix64)."""
    key = np.random.SeedSequence(seeds).generate_state(1, np.uint64)[0]
    z: NDArray[np.uint64] = numbers.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + key
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def seed_of_sigma(sigma: float) -> int:
    """The 64 bits of a noise level, as a seed.

    A level within ``SAME_LEVEL`` of one of the 1,000 timesteps is snapped to it first, and others
    are rounded to five digits: schedulers, powers and float32 round differently, and the seed must
    not change.
    """
    levels = timestep_sigmas()
    index = bisect(levels, sigma)
    nearest = min(levels[max(0, index - 1) : index + 1], key=lambda level: abs(level - sigma))
    level = nearest if abs(nearest - sigma) < SAME_LEVEL * sigma else float(f"{sigma:.5g}")
    return int(np.float64(level).view(np.uint64))


@cache
def timestep_sigmas() -> list[float]:
    """The noise level of each of the paper's 1,000 timesteps, ascending.

    The betas from 1e-4 to 0.02 equal those of diffusers in float32. ``torch.linspace`` would round
    them differently on different processors.
    """
    first, last = np.float32(1e-4), np.float32(0.02)
    steps = np.float64(np.float32((last - first) / np.float32(999))) * np.arange(500)
    exact = np.concatenate([np.float64(first) + steps, np.float64(last) - steps[::-1]])
    betas = exact.astype(np.float32)
    alphas = np.cumprod((np.float32(1) - betas).astype(np.float64)).astype(np.float32)
    return [sigma_of_alpha(float(alpha)) for alpha in alphas]


def sigma_of_alpha(alpha: float) -> float:
    """Sigma = sqrt((1 - alpha) / alpha), with alpha the cumulative product of a VP process."""
    return math.sqrt((1 - alpha) / alpha)


def alpha_of_sigma(sigma: float) -> float:
    """Alpha = 1 / (1 + sigma^2), the inverse of :func:`sigma_of_alpha`."""
    return 1 / (1 + sigma**2)


def ddim_sigmas(steps: int) -> list[float]:
    """The noise levels of the paper's DDIM steps, descending: 60.8 to 0.010 for 10 steps."""
    stride = 1000 // steps
    return [timestep_sigmas()[i * stride] for i in reversed(range(steps))]


def edm_sigmas(steps: int, sigma_max: float = 80.0) -> list[float]:
    """Noise levels evenly spaced in sigma^(1/7), down to 0.002 (Karras et al. 2022, Eq. 5)."""
    high, low = sigma_max ** (1 / RHO), EDM_SIGMA_MIN ** (1 / RHO)
    return [(high + i / max(steps - 1, 1) * (low - high)) ** RHO for i in range(steps)]
