"""One side of a comparison: a run of the sampler, with what the denoiser saw at each step."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

import torch

from golddiff.figures.trajectory import thinned
from golddiff.noise import Labels, Sigma
from golddiff.samplers import Space, State, check_settings, initial_noise, noise_levels, steps
from golddiff.sampling import OnStep
from golddiff.system.errors import ArgumentError

STEPS_KEPT = 20  # of a longer run, evenly spread: states of every step would fill the memory


class OracleCall(Protocol):
    """What an oracle must be: a call as a denoiser's. A ``store`` (or ``shape``) is not needed."""

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x], as :meth:`golddiff.denoiser.Denoiser.__call__`."""
        ...


@dataclass(frozen=True)
class RunSettings:
    """What decides a run, whatever denoises."""

    n: int = 128  # images
    steps: int = 10  # denoising steps
    sampler: str = "ddim"  # "ddim" or "heun"
    seed: int = 0  # of the starting noise
    labels: tuple[int, ...] | None = None  # a class for each image, or None
    batch: int = 16  # images denoised together; the images do not depend on it, the time does

    def __post_init__(self) -> None:
        check_settings(self.n, self.steps, self.sampler, self.seed, self.batch)
        if self.labels is not None and len(self.labels) != self.n:
            raise ArgumentError(f"labels: got {len(self.labels)} of them for {self.n} images")

    @property
    def kept(self) -> list[int]:
        """The steps whose states and predictions are kept."""
        return thinned(self.steps, STEPS_KEPT)


@dataclass(frozen=True)
class Run:
    """What a denoiser made."""

    settings: RunSettings
    images: torch.Tensor  # (n, *shape)
    states: torch.Tensor  # (kept, n, *shape): the x that each step saw, in sigma coordinates
    predictions: torch.Tensor  # (kept, n, *shape): the x0 predicted there
    seconds: float  # in the denoiser's calls
    processor_seconds: float  # of all processors: other programs do not lengthen it

    @property
    def steps(self) -> list[int]:
        """The steps kept."""
        return self.settings.kept

    @property
    def sigmas(self) -> list[float]:
        """Their noise levels."""
        levels = noise_levels(self.settings.steps, self.settings.sampler)
        return [levels[step] for step in self.steps]


class Watched:
    """A denoiser that knows how long its calls took."""

    def __init__(self, denoiser: OracleCall, store: Space) -> None:
        self.denoiser = denoiser
        self.store = store
        self.seconds, self.processor_seconds = 0.0, 0.0

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise as the denoiser does."""
        start, processor = time.perf_counter(), time.process_time()
        x0 = denoise(self.denoiser, x, sigma, labels)
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.process_time() - processor
        return x0


def denoise(denoiser: OracleCall, x: torch.Tensor, sigma: Sigma, labels: Labels) -> torch.Tensor:
    """The denoiser's answer on x's device, of x's shape; a network without classes gets none."""
    x0 = denoiser(x, sigma) if labels is None else denoiser(x, sigma, labels)
    if x0.shape != x.shape:
        raise ArgumentError(
            f"oracle: returned shape {tuple(x0.shape)} for images of shape {tuple(x.shape)}"
        )
    # To the processor: that also waits for a GPU to finish, without which no time is right.
    return x0.detach().to(x.device, torch.float32)


def run(
    denoiser: OracleCall, store: Space, settings: RunSettings, on_step: OnStep = lambda images: None
) -> Run:
    """Sample with anything that has a denoiser's call, keeping what each step saw and predicted."""
    watched = Watched(denoiser, store)
    x_init = initial_noise(settings.n, store.shape, settings.seed)
    levels = noise_levels(settings.steps, settings.sampler)
    kept: list[list[State]] = []
    images = []
    for rows in (slice(i, i + settings.batch) for i in range(0, settings.n, settings.batch)):
        labels = None if settings.labels is None else list(settings.labels[rows])
        kept.append([])
        for step, state in enumerate(
            steps(watched, x_init[rows], levels, settings.sampler, labels)
        ):
            if step in settings.kept:
                kept[-1].append(state)
            on_step(len(state.x0))
        images.append(state.x0)
    return Run(
        settings,
        torch.cat(images),
        torch.cat([torch.stack([state.x for state in batch]) for batch in kept], dim=1),
        torch.cat([torch.stack([state.x0 for state in batch]) for batch in kept], dim=1),
        watched.seconds,
        watched.processor_seconds,
    )
