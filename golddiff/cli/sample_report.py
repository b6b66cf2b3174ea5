"""What ``golddiff sample`` reports of a run: sizes, times, novelty, and all of it as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from golddiff import __version__
from golddiff.cli.sample import SampleJob
from golddiff.cli.summary import describe, summary
from golddiff.system.units import duration

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser
    from golddiff.sampling import Samples
    from golddiff.store.images import ImageStore


@dataclass(frozen=True)
class SampleRun:
    """What was asked for, and what came of it.

    Attributes:
        job: the options.
        store: the training set.
        denoiser: over it.
        labels: class of each image, or None.
        subsets: see :func:`golden_subsets`.
        samples: the images.
        ticks: when the run began, and when each step of each batch was done, in seconds.
    """

    job: SampleJob
    store: ImageStore
    denoiser: Denoiser
    labels: list[int] | None
    subsets: list[dict[str, Any]] | None
    samples: Samples
    ticks: list[float]

    @property
    def seconds(self) -> dict[str, Any]:
        """In all, of an image and step, and of each step summed over batches."""
        steps = len(self.samples.sigmas)
        each = [after - before for before, after in pairwise(self.ticks)]
        return {
            "total": sum(each),
            "per_image_and_step": sum(each) / (self.job.n * steps),
            "per_step": [sum(each[step::steps]) for step in range(steps)],
        }


def golden_subsets(
    denoiser: Denoiser, sigmas: list[float], labels: list[int] | None
) -> list[dict[str, Any]] | None:
    """What the schedule screens (m) and keeps (k) at each step, one entry a class asked for.

    None where the method has no golden subset.

    Raises:
        ArgumentError: a subset larger than the images there are.
    """
    from golddiff.estimators.golden import GoldDiff
    from golddiff.estimators.network_like import NetworkLike

    if isinstance(denoiser, NetworkLike):
        denoiser = denoiser.golden
    if not isinstance(denoiser, GoldDiff) or denoiser.estimates:
        return None  # each query's size is its own
    entries: list[dict[str, Any]] = []
    for label in [None] if labels is None else dict.fromkeys(labels):
        images = denoiser.store.count_of(label)
        m, k = zip(*(denoiser.schedule.budgets(sigma, images) for sigma in sigmas), strict=True)
        entries.append({"label": label, "images": images, "m": list(m), "k": list(k)})
    return entries


def lines(run: SampleRun) -> list[str]:
    """What the command says in the end."""
    job, samples, seconds = run.job, run.samples, run.seconds
    noun = ("point" if len(run.store.shape) == 1 else "image") + ("" if job.n == 1 else "s")
    seen = f"only {samples.share:.1%} of the training images were seen: shards are missing"
    return [
        *([seen] if samples.share < 1 else []),
        f"{job.out}: {job.n:,} {noun} by {job.method}, {duration(seconds['total'])}, "
        f"{duration(seconds['per_image_and_step'])} an image and step",
        *(_novelty_lines(run) if run.store.n > 1 else []),
    ]


def _novelty_lines(run: SampleRun) -> list[str]:
    """How new the outputs are, and what to do about copies."""
    from golddiff.estimators.dial import NOVELTY

    job, found = run.job, run.samples.novelty
    said = [f"novelty {float(found.novelty.mean()):.2f} on average (0 a training image, 1 all new)"]
    copies = int(found.copies.sum())
    if not copies:
        return said
    asked = NOVELTY if job.settings.novelty is None else job.settings.novelty
    cause, advice = f"novelty {asked:g}", f"try --novelty {NOVELTY if asked < NOVELTY else 1:g}"
    if job.method != "recommended":
        cause, advice = job.method, f"try --method recommended --novelty {NOVELTY:g}"
    elif asked == 1:
        advice = "more training images help"
    return [
        *said,
        f"{copies} of {job.n:,} {'outputs copy' if job.n > 1 else 'output copies'} a training "
        f"image: with {run.store.n:,} images and {cause} that is expected; {advice}",
    ]


def figures(run: SampleRun) -> dict[str, Any]:
    """The run for a JSON file."""
    job, samples = run.job, run.samples
    return {
        "golddiff": __version__,
        "method": job.method,
        "settings": job.settings.given(),
        "store": {"description": describe(run.store), **summary(run.store)},
        "n": job.n,
        "steps": job.steps,
        "sampler": job.sampler,
        "seed": job.seed,
        "start": None if job.start is None else {"path": str(job.start), "strength": job.strength},
        "labels": run.labels,
        "sigmas": samples.sigmas,
        "golden_subsets": run.subsets,
        "seconds": run.seconds,
        "novelty": _novelty_figures(samples) if run.store.n > 1 else None,
        "cluster": None if job.cluster is None else _cluster_figures(run.store, run),
        "out": str(job.out),
        "trajectory": None if job.trajectory is None else str(job.trajectory),
        "explain": None if job.explain is None else str(job.explain),
    }


def _novelty_figures(samples: Samples) -> dict[str, Any]:
    found = samples.novelty
    return {
        "mean": float(found.novelty.mean()),
        "spacing": found.spacing,
        "each": found.novelty.tolist(),
        "nearest": found.nearest.tolist(),
        "nearest_files": found.files,
        "distances": found.distances[:, 0].tolist(),
        "copies": found.copies.tolist(),
    }


def _cluster_figures(store: Any, run: SampleRun) -> dict[str, Any]:
    traffic = store.pool.traffic
    return {
        "address": run.job.cluster,
        "shards": store.paths,
        "share": run.samples.share,
        "missing": store.pool.missing,
        "bytes": {"sent": traffic.sent, "received": traffic.received, "once": traffic.given},
        "rounds": traffic.rounds,
    }
