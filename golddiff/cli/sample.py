"""The options and reports of ``golddiff sample``."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import golddiff
from golddiff.cli.command import ADVANCED, option
from golddiff.cli.options import (
    BatchSize,
    Cluster,
    JsonPath,
    Labels,
    MethodName,
    SamplerName,
    Seed,
    Steps,
    Threads,
    TrainingImages,
)
from golddiff.cli.terminal import describe, summary
from golddiff.estimators.registry import DEFAULT_METHOD, MethodSettings
from golddiff.system.units import counted, duration

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser


FEW = 50  # number of training images up to which outputs may be nearly the same
ALIKE = 1 / 3  # standard deviation of such outputs, as a share of that of the training images


@dataclass(frozen=True)
class SampleJob:
    """The options of ``golddiff sample``."""

    images: TrainingImages = field(default_factory=TrainingImages)
    method: MethodName = DEFAULT_METHOD
    settings: MethodSettings = field(default_factory=MethodSettings)
    n: int = option("Number of images.", 16)
    steps: Steps = 10
    seed: Seed = 0
    labels: Labels = None
    start: Path | None = option(
        "Start from this picture with noise added, instead of pure noise.", None, metavar="PICTURE"
    )
    strength: float = option("With --start: share of noise, above 0 to 1 (pure noise).", 0.6)
    out: Path = option(
        "Output: a .png, .jpg or .webp grid; .npz for arrays; or a folder for the grid and one "
        "file per image.",
        Path("grid.png"),
    )
    explain: Path | None = option(
        "Write a web page with the training images behind each output.", None, metavar="PATH.html"
    )
    json: JsonPath = None
    trajectory: Path | None = option(
        "Also write a picture of each step's prediction.", None, panel=ADVANCED
    )
    sampler: SamplerName = "ddim"
    batch_size: BatchSize = 64
    threads: Threads = None
    cluster: Cluster = None
    allow_missing: bool = option(
        "With --cluster: continue without shards that are lost.", False, panel=ADVANCED
    )


@dataclass(frozen=True)
class SampleRun:
    """A finished run: its options, denoiser, images and times."""

    job: SampleJob
    denoiser: Denoiser
    labels: list[int] | None  # class of each image
    samples: golddiff.Samples
    ticks: list[float]  # times in seconds: the start, then the end of each step of each batch

    @property
    def store(self) -> golddiff.ImageStore:
        """The training set."""
        return self.denoiser.store

    @property
    def settings(self) -> dict[str, object]:
        """The method's settings, with the novelty also if it is the default."""
        from golddiff.estimators.dial import NOVELTY

        default = {"novelty": NOVELTY} if self.job.method == "recommended" else {}
        return default | self.job.settings.given()

    @property
    def subsets(self) -> list[dict[str, Any]] | None:
        """Candidates (m) and images (k) of each golden subset, by class; None without subsets."""
        denoiser = getattr(self.denoiser, "golden", self.denoiser)  # a part of network-like
        if not isinstance(denoiser, golddiff.GoldDiff) or denoiser.estimates:
            return None  # an adaptive subset has another size for each query
        entries: list[dict[str, Any]] = []
        for label in [None] if self.labels is None else dict.fromkeys(self.labels):
            images = self.store.count_of(label)
            budgets = [denoiser.schedule.budgets(sigma, images) for sigma in self.samples.sigmas]
            m, k = map(list, zip(*budgets, strict=True))
            entries.append({"label": label, "images": images, "m": m, "k": k})
        return entries

    @property
    def seconds(self) -> dict[str, Any]:
        """Seconds in total, per image and step, and per step summed over batches."""
        steps = len(self.samples.sigmas)
        durations = [after - before for before, after in pairwise(self.ticks)]
        return {
            "total": sum(durations),
            "per_image_and_step": sum(durations) / (self.job.n * steps),
            "per_step": [sum(durations[step::steps]) for step in range(steps)],
        }

    def lines(self) -> list[str]:
        """The lines printed at the end of the command."""
        job, share, seconds = self.job, self.samples.share, self.seconds
        made = counted(job.n, "point" if len(self.store.shape) == 1 else "image")
        warning = f"only {share:.1%} of the training images were used: shards are missing"
        return [
            *([warning] if share < 1 else []),
            f"{job.out}: {made} by {job.method}, {duration(seconds['total'])}, "
            f"{duration(seconds['per_image_and_step'])} per image and step",
            *(self._novelty_lines() if self.store.n > 1 else []),
            *(self._alike_lines() if 1 < self.store.n <= FEW else []),
        ]

    def _alike_lines(self) -> list[str]:
        """Advice if the outputs are nearly the same."""
        job = self.job
        if job.n == 1 or job.start is not None or job.cluster is not None:
            return []
        outputs, images = (
            float(values.var(dim=0).mean().sqrt())
            for values in (self.samples.images, self.store.images())
        )
        if outputs >= ALIKE * images:
            return []
        return [
            f"the outputs are alike: they differ {outputs / images:.0%} as much as the "
            f"{self.store.n} training images do; more training images help"
        ]

    def _novelty_lines(self) -> list[str]:
        """The novelty of the outputs, and advice if some are copies."""
        from golddiff.estimators.dial import NOVELTY, dial

        job, result = self.job, self.samples.novelty
        if not result.copies.any():
            return [result.about]
        classes = [None] if self.labels is None else {*self.labels}
        used = sum(self.store.count_of(label) for label in classes)
        novelty: Any = self.settings.get("novelty")
        if job.start is not None:
            cause = f"strength {job.strength:g}"
            advice = "a higher --strength keeps less of the picture"
        elif job.method != "recommended":
            cause, advice = job.method, f"try --method recommended --novelty {NOVELTY:g}"
        else:
            cause, more = f"novelty {novelty:g}", NOVELTY if novelty < NOVELTY else 1
            threshold = dial(self.store).threshold
            rises = used > 1 and threshold(more) > threshold(novelty)
            advice = f"try --novelty {more:g}" if rises else "more training images help"
        return [result.about, f"copies are expected with {used:,} images and {cause}; {advice}"]

    def figures(self) -> dict[str, Any]:
        """The settings and results for a JSON file."""
        job, samples, start = self.job, self.samples, self.job.start
        return {
            "golddiff": golddiff.__version__,
            "method": job.method,
            "settings": self.settings,
            "denoiser": samples.about.get("denoiser"),
            "data": job.images.data,
            "reading": job.images.reading.given(),
            "store": {"description": describe(self.store), **summary(self.store)},
            "n": job.n,
            "steps": job.steps,
            "sampler": job.sampler,
            "seed": job.seed,
            "start": None if start is None else {"path": str(start), "strength": job.strength},
            "labels": self.labels,
            "sigmas": samples.sigmas,
            "golden_subsets": self.subsets,
            "seconds": self.seconds,
            "novelty": _novelty_figures(samples) if self.store.n > 1 else None,
            "cluster": None if job.cluster is None else self._cluster_figures(self.store),
            "out": str(job.out),
            "trajectory": None if job.trajectory is None else str(job.trajectory),
            "explain": None if job.explain is None else str(job.explain),
        }

    def _cluster_figures(self, store: Any) -> dict[str, Any]:
        traffic = store.pool.traffic
        return {
            "address": self.job.cluster,
            "shards": store.paths,
            "share": self.samples.share,
            "missing": store.pool.missing,
            "bytes": dict(sent=traffic.sent, received=traffic.received, once=traffic.sent_once),
            "rounds": traffic.rounds,
        }


def _novelty_figures(samples: golddiff.Samples) -> dict[str, Any]:
    result = samples.novelty
    return {
        "mean": float(result.novelty.mean()),
        "spacing": result.spacing,
        "each": result.novelty.tolist(),
        "nearest": result.nearest.tolist(),
        "nearest_files": result.files,
        "distances": result.distances[:, 0].tolist(),
        "copies": result.copies.tolist(),
    }
