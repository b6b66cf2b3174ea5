"""A denoiser against an oracle: the paper's MSE and r2, image by image and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from golddiff.denoiser import Denoiser
from golddiff.evaluation.bootstrap import Interval, bootstrap
from golddiff.evaluation.peak_memory import PeakMemory, peak_memory
from golddiff.evaluation.runs import OracleCall, Run, RunSettings, Watched, denoise, run
from golddiff.metrics import mse_per_image, r2_per_image
from golddiff.samplers import Space, initial_noise, noise_levels, steps
from golddiff.sampling import OnStep
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F64


@dataclass(frozen=True)
class Curve:
    """Likeness at each step, averaged over images; r2 over the images where it is defined."""

    mse: F64  # (steps,)
    r2: F64  # (steps,); NaN where every reference image is constant

    def figures(self) -> dict[str, list[float | None]]:
        """The same for JSON."""
        return {"mse": _without_nan(self.mse), "r2": _without_nan(self.r2)}


@dataclass(frozen=True)
class Evaluation:
    """What :func:`evaluate` returns. Images mapped to [0, 1], as in :mod:`golddiff.metrics`.

    Attributes:
        settings: what was sampled.
        oracle_sampler: of the reference, where it is another.
        images: (n, *shape) what the denoiser made.
        mse_per_image: (n,) float64.
        r2_per_image: (n,) float64; NaN where the oracle's image is constant, for which r2 is not
            defined: such images are left out of ``r2`` and counted.
        steps, sigmas: of the curves.
        own: predictions of each run at its own states: how far the two runs have come apart. None
            where the two sides use different samplers.
        single: the error of one step alone: both denoise the oracle's own states. None where it
            was not asked for.
        seconds: in the denoiser's calls, an image and step.
        processor_seconds: the same of all processors together, which other programs do not
            lengthen.
        setup_seconds: of a run of one image and a step of one batch before, which make what is
            made once (masks, compiled kernels).
        memory: peak during both.
        threads: that torch used.
    """

    settings: RunSettings
    oracle_sampler: str
    images: torch.Tensor = field(repr=False)
    mse_per_image: F64
    r2_per_image: F64
    steps: list[int]
    sigmas: list[float]
    own: Curve | None
    single: Curve | None
    seconds: float
    processor_seconds: float
    setup_seconds: float
    memory: PeakMemory
    threads: int = field(default_factory=torch.get_num_threads)

    @property
    def mse(self) -> Interval:
        """The mean over images, with its 95% bootstrap interval."""
        return bootstrap(self.mse_per_image)

    @property
    def r2(self) -> Interval:
        """The mean over images for which it is defined, with its 95% bootstrap interval."""
        return bootstrap(self.r2_per_image)

    def figures(self) -> dict[str, Any]:
        """Everything but the images, for JSON."""
        per_image = {"mse": self.mse_per_image, "r2": self.r2_per_image}
        return {
            "n": self.settings.n,
            "steps": self.settings.steps,
            "sampler": self.settings.sampler,
            "oracle_sampler": self.oracle_sampler,
            "seed": self.settings.seed,
            "labels": None if self.settings.labels is None else list(self.settings.labels),
            "batch": self.settings.batch,
            "mse": self.mse.figures(),
            "r2": self.r2.figures(),
            "r2_undefined": int(np.isnan(self.r2_per_image).sum()),
            "per_image": {name: _without_nan(values) for name, values in per_image.items()},
            "per_step": {
                "step": [i + 1 for i in self.steps],
                "sigma": self.sigmas,
                "own": None if self.own is None else self.own.figures(),
                "single": None if self.single is None else self.single.figures(),
            },
            "seconds": {
                "per_image_and_step": self.seconds,
                "processor_per_image_and_step": self.processor_seconds,
                "setup": self.setup_seconds,
            },
            "memory": self.memory.figures(),
            "threads": self.threads,
        }


def evaluate(
    denoiser: Denoiser,
    oracle: OracleCall,
    n: int = 128,
    steps: int = 10,
    sampler: str = "ddim",
    seed: int = 0,
    labels: int | Sequence[int] | None = None,
    batch: int = 16,
    *,
    oracle_sampler: str | None = None,
    single_step: bool = True,
) -> Evaluation:
    """Compare a denoiser with an oracle from the same noise.

    Args:
        denoiser: any analytical denoiser; its store gives the images' shape.
        oracle: a neural denoiser, as :func:`golddiff.load_oracle` returns; anything with the same
            call will do.
        n: images. The paper averages 128; differences of 0.02 in r2 need about as many.
        steps: denoising steps.
        sampler: "ddim", the paper's, or "heun".
        seed: of the starting noise.
        labels: class for all, or one for each image; None: no classes, on both sides.
        batch: images denoised together.
        oracle_sampler: the oracle's sampler where it differs; the paper compares EDM networks under
            "heun" with analytical ones under "ddim". From the same unit noise all the same.
        single_step: also the errors of single steps at the oracle's states; takes as long again.

    Raises:
        ArgumentError: an argument out of range; an oracle of another image shape.
    """
    every = (labels,) * n if isinstance(labels, int) else labels
    classes = None if every is None else tuple(every)
    settings = RunSettings(n, steps, sampler, seed, classes, batch)
    theirs = replace(settings, sampler=oracle_sampler or sampler)
    check_oracle(oracle, denoiser.store)
    reference = run(oracle, denoiser.store, theirs)
    return compare(denoiser, reference, settings, single_step=single_step)


def check_oracle(oracle: object, store: Space) -> None:
    """Raise where an oracle says that it is for images of another shape, or cannot be called."""
    if not callable(oracle):
        raise ArgumentError(
            f"oracle: got {type(oracle).__name__}, expected a call D(x, sigma, labels)"
        )
    shape = getattr(getattr(oracle, "store", oracle), "shape", None)
    if shape is not None and tuple(shape) != tuple(store.shape):
        raise ArgumentError(
            f"oracle: is for images of shape {tuple(shape)}, the store's are {tuple(store.shape)}"
        )


def compare(
    denoiser: Denoiser,
    reference: Run,
    settings: RunSettings,
    *,
    single_step: bool = True,
    on_step: OnStep = lambda images: None,
) -> Evaluation:
    """:func:`evaluate` against a reference that was made before (by :func:`runs.run`)."""
    store = denoiser.store
    first = None if settings.labels is None else settings.labels[:1]
    one = RunSettings(1, settings.steps, settings.sampler, settings.seed, first, 1)
    with peak_memory() as memory:
        setup = run(denoiser, store, one).seconds + _first_batch(denoiser, settings)
        made = run(denoiser, store, settings, on_step)
    theirs = reference.settings.sampler
    return Evaluation(
        settings,
        theirs,
        made.images,
        mse_per_image(made.images, reference.images).numpy(),
        r2_per_image(made.images, reference.images).numpy(),
        reference.steps,
        reference.sigmas,
        _curve(made.predictions, reference.predictions) if theirs == settings.sampler else None,
        _curve(_at_states(denoiser, reference, settings), reference.predictions)
        if single_step
        else None,
        made.seconds / (settings.n * settings.steps),
        made.processor_seconds / (settings.n * settings.steps),
        setup,
        memory,
    )


def _first_batch(denoiser: Denoiser, settings: RunSettings) -> float:
    """One step of a whole batch: kernels are compiled apart for few queries and for many."""
    noise = initial_noise(min(settings.batch, settings.n), denoiser.store.shape, settings.seed)
    levels = noise_levels(settings.steps, settings.sampler)
    labels = None if settings.labels is None else list(settings.labels[: len(noise)])
    watched = Watched(denoiser, denoiser.store)
    next(steps(watched, noise, levels, settings.sampler, labels))
    return watched.seconds


def _at_states(denoiser: Denoiser, reference: Run, settings: RunSettings) -> torch.Tensor:
    """The denoiser's predictions at the reference's states, (kept, n, *shape)."""

    def at(x: torch.Tensor, sigma: float) -> torch.Tensor:
        parts = []
        for i in range(0, len(x), settings.batch):
            labels = settings.labels and list(settings.labels[i : i + settings.batch])
            parts.append(denoise(denoiser, x[i : i + settings.batch], sigma, labels))
        return torch.cat(parts)

    pairs = zip(reference.states, reference.sigmas, strict=True)
    return torch.stack([at(x, sigma) for x, sigma in pairs])


def _curve(predictions: torch.Tensor, reference: torch.Tensor) -> Curve:
    pairs = list(zip(predictions, reference, strict=True))
    r2 = torch.stack([r2_per_image(a, b).nanmean() for a, b in pairs])
    return Curve(np.array([float(mse_per_image(a, b).mean()) for a, b in pairs]), r2.numpy())


def _without_nan(values: F64) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
