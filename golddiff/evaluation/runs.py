"""One side of a comparison: a run of the sampler, with what the denoiser saw at each step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from golddiff.figures.trajectory import thinned
from golddiff.noise import Labels, Sigma
from golddiff.sampling import OnStep, Space, check_settings, noise_levels, sample
from golddiff.system.errors import ArgumentError

STEPS_KEPT = 20  # of a longer run, evenly spread: states of every step would fill the memory


class OracleCall(Protocol):
    """What an oracle must be: a call as a denoiser's. A ``store`` (or ``shape``) is not needed."""

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x], as :meth:`golddiff.denoiser.Denoiser.__call__`."""
        ...


@dataclass(frozen=True)
class RunSettings:
    """What decides a run, whatever denoises.

    Attributes:
        n: images.
        steps: denoising steps.
        sampler: "ddim" or "heun".
        seed: of the starting noise.
        labels: a class for each image, or None.
        batch: images denoised together; the images do not depend on it, the time does.
    """

    n: int = 128
    steps: int = 10
    sampler: str = "ddim"
    seed: int = 0
    labels: tuple[int, ...] | None = None
    batch: int = 16

    def __post_init__(self) -> None:
        check_settings(self.n, self.steps, self.sampler, self.seed, self.batch)
        if self.labels is not None and len(self.labels) != self.n:
            raise ArgumentError(f"labels: got {len(self.labels)} of them for {self.n} images")

    @property
    def kept(self) -> list[int]:
        """The steps whose states and predictions are kept."""
        return thinned(self.steps, STEPS_KEPT)


def settings_of(
    n: int, steps: int, sampler: str, seed: int, labels: int | Sequence[int] | None, batch: int
) -> RunSettings:
    """The settings, ``labels`` being one class for all, one for each image, or None."""
    every = (labels,) * n if isinstance(labels, int) else labels
    return RunSettings(n, steps, sampler, seed, None if every is None else tuple(every), batch)


@dataclass(frozen=True)
class Run:
    """What a denoiser made.

    Attributes:
        images: (n, *shape), the result.
        steps: the steps kept.
        sigmas: their noise levels.
        states: (kept, n, *shape), the x that each of these steps saw, in sigma coordinates.
        predictions: (kept, n, *shape), the x0 predicted there.
        seconds: spent in the denoiser's calls.
        processor_seconds: the same of all processors together: what other programs on the machine
            do not lengthen.
    """

    images: torch.Tensor
    steps: list[int]
    sigmas: list[float]
    states: torch.Tensor
    predictions: torch.Tensor
    seconds: float
    processor_seconds: float


class Watched:
    """A denoiser that remembers its calls, and how long they took."""

    def __init__(self, denoiser: OracleCall, store: Space) -> None:
        self.denoiser = denoiser
        self.store = store
        self.calls: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.seconds, self.processor_seconds = 0.0, 0.0

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise as the denoiser does."""
        start, processor = time.perf_counter(), time.process_time()
        x0 = denoise(self.denoiser, x, sigma, labels)
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.process_time() - processor
        self.calls.append((x, x0))
        return x0


def denoise(denoiser: OracleCall, x: torch.Tensor, sigma: Sigma, labels: Labels) -> torch.Tensor:
    """The denoiser's answer on x's device, of x's shape; a network without classes gets none.

    Raises:
        ArgumentError: an answer of another shape.
    """
    x0 = denoiser(x, sigma) if labels is None else denoiser(x, sigma, labels)
    if x0.shape != x.shape:
        raise ArgumentError(
            f"oracle: returned shape {tuple(x0.shape)} for images of shape {tuple(x.shape)}"
        )
    # To the processor: that also waits for a GPU to finish, without which no time is right.
    return x0.detach().to(x.device, torch.float32)


def run(
    denoiser: OracleCall,
    store: Space,
    settings: RunSettings,
    on_step: OnStep = lambda images: None,
) -> Run:
    """Sample, keeping what each step saw and predicted.

    Args:
        denoiser: anything with a denoiser's call.
        store: gives the shape of the images, and whether predictions are clipped.
        settings: what to sample.
        on_step: called after each step of each batch with the number of images in it.
    """
    watched = Watched(denoiser, store)
    made = sample(
        watched,
        settings.n, settings.steps, settings.sampler, settings.seed,
        None if settings.labels is None else list(settings.labels),
        batch_size=settings.batch, trajectory=False, on_step=on_step,
    )  # fmt: skip
    # Heun calls twice a step, except at the last; the first call of a step is at its start.
    calls_a_step = 2 if settings.sampler == "heun" else 1
    calls_a_batch = calls_a_step * settings.steps - (calls_a_step - 1)
    batches = len(watched.calls) // calls_a_batch
    first = [calls_a_step * step for step in settings.kept]
    states, predictions = (
        torch.stack(
            [
                torch.cat([watched.calls[b * calls_a_batch + i][side] for b in range(batches)])
                for i in first
            ]
        )
        for side in (0, 1)
    )
    levels = noise_levels(settings.steps, settings.sampler)
    return Run(
        made.images, settings.kept, [levels[i] for i in settings.kept], states, predictions,
        watched.seconds, watched.processor_seconds,
    )  # fmt: skip
