"""The noisy images that the sides of a race are given."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from golddiff.bench.job import QUERIES_FROM, STEPS
from golddiff.denoiser import Labels, Sigma
from golddiff.errors import ArgumentError
from golddiff.registry import create
from golddiff.sampling import Denoises, sample
from golddiff.store.images import ImageStore

TRAJECTORY_OF = "golddiff-pca"


def queries(
    source: str, store: ImageStore, sigmas: Sequence[float], batch: int, seed: int
) -> list[torch.Tensor]:
    """A batch of noisy images (batch, *shape) for each noise level.

    Args:
        source: "trajectory", what a run of golddiff-pca from seeded noise passes through; or
            "noised", training images with noise.
        store: the training set.
        sigmas: noise levels.
        batch: images a level.
        seed: of all noise.

    Raises:
        ArgumentError: another source.
    """
    if source not in QUERIES_FROM:
        raise ArgumentError(f"queries_from: got {source!r}, expected {' or '.join(QUERIES_FROM)}")
    if source == "noised":
        return noised(store, sigmas, batch, seed)
    return trajectory(create(TRAJECTORY_OF, store, seed=seed), sigmas, batch, seed)


def noised(store: ImageStore, sigmas: Sequence[float], batch: int, seed: int) -> list[torch.Tensor]:
    """The same random training images and the same noise at every level."""
    generator = torch.Generator().manual_seed(seed)
    clean = store.images(torch.randint(store.n, (batch,), generator=generator))
    noise = torch.randn(clean.shape, generator=generator)
    return [clean + sigma * noise for sigma in sigmas]


def trajectory(
    denoiser: Denoises, sigmas: Sequence[float], batch: int, seed: int
) -> list[torch.Tensor]:
    """Where a 10-step DDIM run passes each noise level.

    At a level of the run that is what its step there sees; between two levels it is on the straight
    line from the step above: x = x0 + sigma / sigma_above (x_above - x0); above all of them, on the
    line through the first.
    """
    watched = _Watched(denoiser)
    sample(watched, batch, STEPS, seed=seed, batch_size=batch, trajectory=False)
    return [_at(sigma, watched.seen) for sigma in sigmas]


Seen = list[tuple[float, torch.Tensor, torch.Tensor]]


def _at(sigma: float, seen: Seen) -> torch.Tensor:
    above = [state for state in seen if state[0] >= sigma * (1 - 1e-9)]
    level, x, x0 = above[-1] if above else seen[0]
    return x if level == sigma else x0 + sigma / level * (x - x0)


class _Watched:
    """A denoiser that keeps what it was given and what it answered."""

    def __init__(self, denoiser: Denoises) -> None:
        self.store = denoiser.store
        self._denoiser = denoiser
        self.seen: Seen = []

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        x0 = self._denoiser(x, sigma, labels)
        self.seen.append((float(sigma), x, x0))
        return x0
