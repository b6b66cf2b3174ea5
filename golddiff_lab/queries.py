"""Noisy images used as queries in benchmarks and comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from golddiff.samplers import Denoises, State, initial_noise, noise_levels, steps
from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff_lab.arguments import STEPS
from golddiff_lab.augment import NUMBERS, augmented

TRAJECTORY_OF = "golddiff-pca"  # the method whose run gives the queries


def noised(store: ImageStore, sigmas: Sequence[float], batch: int, seed: int) -> list[torch.Tensor]:
    """Random training images plus noise, with the same images and noise at every level."""
    generator = torch.Generator().manual_seed(seed)
    clean = store.images(torch.randint(store.n, (batch,), generator=generator))
    noise = torch.randn(clean.shape, generator=generator)
    return [clean + sigma * noise for sigma in sigmas]


def trajectory(
    denoiser: Denoises, sigmas: Sequence[float], batch: int, seed: int
) -> list[torch.Tensor]:
    """The states of a 10-step DDIM run at each noise level.

    At a level of the run this is the input of that step. Between levels the state is interpolated
    linearly from the step above: x = x0 + sigma / sigma_above (x_above - x0). Above all levels it
    is extrapolated from the first step.
    """
    noise = initial_noise(batch, denoiser.store.shape, seed)
    states = list(steps(denoiser, noise, noise_levels(STEPS, "ddim")))
    return [_at(sigma, states) for sigma in sigmas]


def mixed(
    store: ImageStore, denoiser: Denoises, sigmas: Sequence[float], batch: int, seed: int
) -> list[torch.Tensor]:
    """A batch (batch, *shape) for each noise level, alternating run states and held-out images."""
    clean = held_out(store, batch // 2, seed)
    states = trajectory(denoiser, sigmas, -(-batch // 2), seed)
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed + 1))
    levels = []
    for sigma, points in zip(sigmas, states, strict=True):
        x = torch.empty(batch, *store.shape)
        x[0::2], x[1::2] = points, clean + sigma * noise
        levels.append(x)
    return levels


def held_out(store: ImageStore, count: int, seed: int) -> torch.Tensor:
    """Images (count, *shape) in [-1, 1] that resemble the training set but are not in it.

    They are augmented training images (:mod:`golddiff_lab.augment`), with another seed than the
    enlarged sets use.
    """
    if not store.is_pixels or len(store.shape) != 3 or store.shape[0] not in (1, 3):
        raise ArgumentError(
            f"data: got {store.shape} {store.manifest.dtype}, expected uint8 images of 1 or 3 "
            "channels"
        )
    generator = np.random.default_rng([4, seed])
    rows = generator.integers(0, store.n, count)
    pixels = store.flat[rows].reshape(count, *store.shape)
    images = augmented(pixels, generator.random((count, NUMBERS)))
    return torch.from_numpy(images).float() / 127.5 - 1


def _at(sigma: float, states: list[State]) -> torch.Tensor:
    above = [state for state in states if state.sigma >= sigma * (1 - 1e-9)]
    state = above[-1] if above else states[0]
    if state.sigma == sigma:
        return state.x
    return state.x0 + sigma / state.sigma * (state.x - state.x0)
