"""Compare a denoiser with an oracle: the paper's MSE and r2 per image and per step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import torch

from golddiff.denoiser import Denoiser
from golddiff.evaluation.interval import Interval, mean_interval
from golddiff.evaluation.peak_memory import PeakMemory, peak_memory
from golddiff.evaluation.runs import OracleCall, Run, RunSettings, TimedDenoiser, run
from golddiff.metrics import mse_per_image, r2_per_image
from golddiff.noise import Labels
from golddiff.samplers import (
    Space,
    check_denoises,
    check_settings,
    initial_noise,
    noise_levels,
    sampler_named,
    steps,
)
from golddiff.sampling import OnStep
from golddiff.system.arguments import classes_of
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F64, check_count
from golddiff.system.units import counted


@dataclass(frozen=True, eq=False)
class Curve:
    """Mean MSE and r2 of the images at each step; r2 over the images where it is defined."""

    mse: F64  # (steps,)
    r2: F64  # (steps,); NaN where every reference image is constant

    def figures(self) -> dict[str, list[float | None]]:
        """The curve as lists for JSON, with NaN replaced by None."""
        return {"mse": _without_nan(self.mse), "r2": _without_nan(self.r2)}


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The result of :func:`evaluate`.

    Metrics map pixels to [0, 1], and compare latents and points as they are
    (:mod:`golddiff.metrics`).

    Attributes:
        settings: settings of the denoiser's run.
        oracle_sampler: sampler of the oracle's run, which may differ from the denoiser's.
        images: (n, *shape) the denoiser's samples.
        mse_per_image: (n,) float64.
        r2_per_image: (n,) float64; NaN where the oracle's image is constant and r2 undefined.
            The mean ``r2`` ignores such images; ``figures`` counts them.
        steps: step numbers of the curves.
        sigmas: noise levels of the curves.
        own: curve of the predictions of each run at its own states, which shows how the runs
            diverge. None if the two sides use different samplers.
        single: curve of single-step errors at the oracle's states; None without ``single_step``.
        seconds: wall time of the denoiser's calls, per image and step.
        processor_seconds: CPU time of those calls over all cores, unaffected by other programs.
        setup_seconds: time of a warm-up (one run of one image, one step of a batch), which builds
            masks and compiles kernels.
        memory: peak memory of the warm-up and the run.
        threads: number of threads that torch used.
    """

    settings: RunSettings
    oracle_sampler: str
    images: torch.Tensor
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

    def __repr__(self) -> str:
        s, (mse, r2) = self.settings, (
            f"{i.mean:.3g} ({i.bounds('.3g')})" for i in (self.mse, self.r2)
        )  # fmt: skip
        run = f"{counted(s.n, 'image')}, {counted(s.steps, 'step')} of {s.sampler}, seed {s.seed}"
        return f"<Evaluation: {run}; r2 {r2}, MSE {mse}>"

    @property
    def mse(self) -> Interval:
        """The mean over images, with its 95% interval."""
        return mean_interval(self.mse_per_image)

    @property
    def r2(self) -> Interval:
        """The mean over images for which it is defined, with its 95% interval."""
        return mean_interval(self.r2_per_image)

    def figures(self) -> dict[str, Any]:
        """Everything but the images, for JSON."""
        per_image = {"mse": self.mse_per_image, "r2": self.r2_per_image}
        return {
            **asdict(self.settings),
            "oracle_sampler": self.oracle_sampler,
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
            "memory": asdict(self.memory),
            "threads": self.threads,
        }


def evaluate(
    denoiser: Denoiser,
    oracle: OracleCall,
    n: int = 128,
    steps: int = 10,
    sampler: str = "ddim",
    seed: int = 0,
    labels: Labels = None,
    batch: int = 16,
    *,
    oracle_sampler: str | None = None,
    single_step: bool = True,
) -> Evaluation:
    """Compare a denoiser with an oracle from the same noise.

    Args:
        denoiser: any analytical denoiser; its store gives the image shape.
        oracle: a network from :func:`golddiff.load_oracle`, or a callable with its signature.
        n: number of images. The paper averages 128, enough to resolve differences of 0.02 in r2.
        steps: number of denoising steps.
        sampler: "ddim" (the paper's) or "heun".
        seed: seed of the starting noise.
        labels: one class for all images, or (n,) classes; None: both sides are unconditional.
        batch: number of images denoised together.
        oracle_sampler: the oracle's sampler; None: the same as ``sampler``. The paper compares EDM
            networks under "heun" with analytical denoisers under "ddim" from the same unit noise.
        single_step: also compute single-step errors at the oracle's states; doubles the time.

    Raises:
        ArgumentError: an argument out of range or of the wrong kind, an oracle for another image
            shape, or a class without training images.
    """
    check_denoises(denoiser)
    if getattr(denoiser, "batch", 1) > 1:
        raise ArgumentError(
            f"denoiser: has {denoiser.batch} conditions, expected one for all images"
        )
    batch = check_count("batch", batch)
    n, steps, seed, _ = check_settings(n, steps, sampler, seed)
    classes = None if labels is None else tuple(classes_of(labels, n).tolist())
    check_oracle(oracle, denoiser.store, classes or ())
    settings = RunSettings(n, steps, sampler, seed, classes, batch)
    if isinstance(denoiser, Denoiser):
        for label in classes or ():
            denoiser.store.count_of(label)  # raises before the oracle's run, which may be long
    sampler_named(oracle_sampler or sampler, "oracle_sampler")
    oracle_settings = replace(settings, sampler=oracle_sampler or sampler)
    reference = run(oracle, denoiser.store, oracle_settings)
    return compare(denoiser, reference, settings, single_step=single_step)


def check_oracle(oracle: object, store: Space, classes: Sequence[int] = ()) -> None:
    """Raise ArgumentError if the oracle is not callable, or differs from the store.

    Compared are the shape of images and, if both name their classes, the names of ``classes``.
    """
    if not callable(oracle):
        raise ArgumentError(
            f"oracle: got {type(oracle).__name__}, expected a call D(x, sigma, labels)"
        )
    shape = getattr(getattr(oracle, "store", oracle), "shape", None)
    if shape is not None and tuple(shape) != tuple(store.shape):
        raise ArgumentError(
            f"oracle: is for images of shape {tuple(shape)}, the store's are {tuple(store.shape)}"
        )
    # A class beyond the names of either is refused elsewhere.
    names = [getattr(side, "class_names", None) for side in (oracle, store)]
    known, own = (() if side is None else side for side in names)
    for label, (theirs, ours) in enumerate(zip(known, own, strict=False)):
        if label in classes and theirs != ours:
            raise ArgumentError(
                f"labels: class {label} of the oracle is {theirs!r}, and of the store {ours!r}; if "
                "they are the same, give both one name"
            )


def compare(
    denoiser: Denoiser,
    reference: Run,
    settings: RunSettings,
    *,
    single_step: bool = True,
    on_step: OnStep | None = None,
) -> Evaluation:
    """:func:`evaluate` against an existing run of the oracle (from :func:`runs.run`)."""
    store, pixels = denoiser.store, denoiser.store.is_pixels
    one_image = replace(settings, n=1, labels=settings.labels and settings.labels[:1])
    timed, (_, labels) = TimedDenoiser(denoiser, store), settings.batches[0]
    with peak_memory() as memory:
        setup = run(denoiser, store, one_image).seconds
        # Other kernels compile for many queries than for one.
        noise = initial_noise(min(settings.batch, settings.n), store.shape, settings.seed)
        levels = noise_levels(settings.steps, settings.sampler)
        next(steps(timed, noise, levels, settings.sampler, labels))
        setup += timed.seconds
        own_run = run(denoiser, store, settings, on_step)
    single = None
    if single_step:
        at_states = [
            torch.cat([timed(x[rows], sigma, labels) for rows, labels in settings.batches])
            for x, sigma in zip(reference.states, reference.sigmas, strict=True)
        ]
        single = _curve(at_states, reference.predictions, pixels)
    oracle_sampler = reference.settings.sampler
    same_sampler = oracle_sampler == settings.sampler
    return Evaluation(
        settings,
        oracle_sampler,
        own_run.images,
        mse_per_image(own_run.images, reference.images, pixels).numpy(),
        r2_per_image(own_run.images, reference.images, pixels).numpy(),
        reference.settings.kept,
        reference.sigmas,
        _curve(own_run.predictions, reference.predictions, pixels) if same_sampler else None,
        single,
        own_run.seconds / (settings.n * settings.steps),
        own_run.processor_seconds / (settings.n * settings.steps),
        setup,
        memory,
    )


def _curve(predictions: Iterable[torch.Tensor], reference: torch.Tensor, pixels: bool) -> Curve:
    pairs = list(zip(predictions, reference, strict=True))
    mse = [float(mse_per_image(a, b, pixels).mean()) for a, b in pairs]
    r2 = torch.stack([r2_per_image(a, b, pixels).nanmean() for a, b in pairs])
    return Curve(np.array(mse), r2.numpy())


def _without_nan(values: F64) -> list[float | None]:
    return [None if np.isnan(value) else float(value) for value in values]
