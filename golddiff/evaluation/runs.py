"""One side of a comparison: a run of the sampler, with states and predictions at each step."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from golddiff.figures.trajectory import thinned
from golddiff.noise import Labels, Sigma
from golddiff.samplers import Space, check_output, initial_noise, noise_levels, steps
from golddiff.sampling import OnStep

STEPS_KEPT = 20  # most steps stored of a run, evenly spaced, to bound the memory

# D(x, sigma, labels) -> E[x0 | x]; labels only if the run has them.
OracleCall = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class RunSettings:
    """The settings of a run, apart from the denoiser."""

    n: int = 128  # number of images
    steps: int = 10  # number of denoising steps
    sampler: str = "ddim"  # "ddim" or "heun"
    seed: int = 0  # seed of the starting noise
    labels: tuple[int, ...] | None = None  # one class per image, or None
    batch: int = 16  # images denoised together; affects the time, not the images

    @property
    def batches(self) -> list[tuple[slice, list[int] | None]]:
        """The rows of the images of each batch, and their classes."""
        rows = [slice(i, i + self.batch) for i in range(0, self.n, self.batch)]
        return [(own, None if self.labels is None else list(self.labels[own])) for own in rows]

    @property
    def kept(self) -> list[int]:
        """The steps whose states and predictions are kept."""
        return thinned(self.steps, STEPS_KEPT)


@dataclass(frozen=True)
class Run:
    """The result of a run: images, with states and predictions of the kept steps."""

    settings: RunSettings
    images: torch.Tensor  # (n, *shape)
    states: torch.Tensor  # (kept, n, *shape): x before each step, in sigma coordinates
    predictions: torch.Tensor  # (kept, n, *shape): the predicted x0
    seconds: float  # wall time of the denoiser's calls
    processor_seconds: float  # CPU time of all cores, unaffected by other programs

    @property
    def sigmas(self) -> list[float]:
        """Noise levels of the kept steps."""
        levels = noise_levels(self.settings.steps, self.settings.sampler)
        return [levels[step] for step in self.settings.kept]


class TimedDenoiser:
    """A denoiser or oracle whose calls are checked and timed."""

    def __init__(self, denoiser: OracleCall, store: Space) -> None:
        self.denoiser = denoiser
        self.store = store
        self.seconds, self.processor_seconds = 0.0, 0.0

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x] with x's shape and device; ``labels`` None is not passed on."""
        start, processor = time.perf_counter(), time.process_time()
        x0 = self.denoiser(x, sigma) if labels is None else self.denoiser(x, sigma, labels)
        check_output(getattr(self.denoiser, "__name__", type(self.denoiser).__name__), x0, x)
        # Copying to the CPU also waits for the GPU, without which the timing would be wrong.
        x0 = x0.detach().to(x.device, torch.float32)
        self.seconds += time.perf_counter() - start
        self.processor_seconds += time.process_time() - processor
        return x0


def run(
    denoiser: OracleCall, store: Space, settings: RunSettings, on_step: OnStep | None = None
) -> Run:
    """Sample with any callable denoiser, keeping the states and predictions of its steps."""
    timed = TimedDenoiser(denoiser, store)
    x_init = initial_noise(settings.n, store.shape, settings.seed)
    levels = noise_levels(settings.steps, settings.sampler)
    kept, shape = settings.kept, (settings.n, *store.shape)
    states, predictions = torch.empty(2, len(kept), *shape, dtype=torch.float32, device="cpu")
    for rows, labels in settings.batches:
        for step, state in enumerate(steps(timed, x_init[rows], levels, settings.sampler, labels)):
            if step in kept:
                i = kept.index(step)
                states[i, rows], predictions[i, rows] = state.x, state.x0
            if on_step is not None:
                on_step(len(state.x0))
    return Run(
        settings,
        predictions[-1].clone(),
        states,
        predictions,
        timed.seconds,
        timed.processor_seconds,
    )
