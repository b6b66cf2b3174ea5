"""``golddiff sample``: check the options, sample, draw and report."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import golddiff
from golddiff.cli.cluster import answers_per_shard, open_sharded, shard_bar
from golddiff.cli.command import command
from golddiff.cli.first_use import create_with_bars
from golddiff.cli.options import ReadingOptions, TrainingImages, check_outputs, parse_labels
from golddiff.cli.sample import SampleJob, SampleRun
from golddiff.cli.terminal import progress_bar, say, starting, waiting, write_json
from golddiff.estimators.registry import METHODS, check_method, memory_needed
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES, is_folder

if TYPE_CHECKING:
    import torch

    from golddiff.denoiser import Denoiser

# The training images without --data: crops of two photographs, ready in seconds.
DEFAULT = TrainingImages("patches", reading=ReadingOptions(limit=1000))


@command
def sample(job: SampleJob) -> None:
    """Generate images from noise and draw them as one picture.

    The training images are yours (--data or --store), or by default patches of two photographs.

    For example:

      golddiff sample
      golddiff sample --data photos/ --size 64 --n 64 --novelty 0.5 --out grid.png
      golddiff sample --store cifar.store --method pca --labels 3 --json run.json
      golddiff sample --n 8 --explain report.html
      golddiff sample --data photos/ --size 64 --start photo.jpg --strength 0.5 --out pictures/
      golddiff sample --data moons --method optimal --n 500 --trajectory paths.png
      golddiff sample --cluster head:6379 --store shards/ --method golddiff-pca
    """
    _check(job)

    from golddiff.samplers import level_of_strength, noise_levels
    from golddiff.sampling import check_room
    from golddiff.sources.picture import fit_to_shape, read_picture
    from golddiff.system.parallel import use_threads

    use_threads(job.threads)
    first = None if job.start is None else level_of_strength(job.strength)
    picture = None if job.start is None else read_picture("start", job.start)
    store = _open(job)
    if job.explain is not None and len(store.shape) != 3:
        raise ArgumentError("explain: got a training set of points, expected images")
    if len(store.shape) == 1 and is_folder(job.out):
        raise ArgumentError(f"out: got the folder {job.out}, expected a file, for points")
    check_room(job.n, store.shape, 0 if job.trajectory is None else job.steps)
    labels = parse_labels(job.labels, store, job.n)
    image = None if picture is None else fit_to_shape(picture, store.shape)
    denoiser = create_with_bars(job.method, store, job.settings, job.seed)
    levels = noise_levels(job.steps, job.sampler, first)
    samples, ticks = _generate(job, denoiser, labels, levels, image)
    run = SampleRun(job, denoiser, labels, samples, ticks)
    if job.explain is not None:
        _explain(run, job.explain)
    _draw(run)
    if store.n > 1:
        with waiting("finding the nearest training images"):
            samples.novelty  # noqa: B018  computes and caches it
    if job.trajectory is not None and samples.trajectory is not None:
        _draw_trajectory(run, samples.trajectory, job.trajectory)
    write_json(job.json, run.figures())
    say(*run.lines())


def _check(job: SampleJob) -> None:
    """Check the options without opening or building a store."""
    job.images.check()
    if job.cluster is not None and job.images.store is None:
        raise ArgumentError("store: --cluster needs a --store made by golddiff index --cluster")
    if job.allow_missing and job.cluster is None:
        raise ArgumentError("allow_missing: applies to --cluster only")
    check_method(job.method, job.settings)
    check_outputs(job.images, [job.start], job.out, job.json, job.explain, job.trajectory)
    if job.explain is not None:
        _check_explainable(job)

    starting()
    from golddiff.samplers import check_settings

    check_settings(job.n, job.steps, job.sampler, job.seed, job.batch_size)
    if job.start is None and job.strength != SampleJob.strength:
        raise ArgumentError("strength: applies to --start only")


def _check_explainable(job: SampleJob) -> None:
    if job.cluster is not None:
        raise ArgumentError(
            "explain: does not apply with --cluster, because the report needs the training images "
            "on this machine; golddiff.sample(..., attribution=True) finds the sources"
        )
    if not METHODS[job.method].has_sources:
        raise ArgumentError(
            f"explain: {job.method} has no sources, because its output is not a weighted sum of "
            "training images; expected another method, such as --method recommended"
        )


def _open(job: SampleJob) -> golddiff.ImageStore:
    images = job.images
    if job.cluster is not None:
        assert images.store is not None
        return open_sharded(images.store, job.cluster, job.allow_missing)
    if images.data is None and images.store is None:
        reading = replace(DEFAULT.reading, **images.reading.given())
        images = replace(images, data=DEFAULT.data, reading=reading)
    return images.open(memory_needed(job.method, job.settings))


def _generate(
    job: SampleJob,
    denoiser: Denoiser,
    labels: list[int] | None,
    levels: list[float],
    image: torch.Tensor | None,
) -> tuple[golddiff.Samples, list[float]]:
    """The images, and the times of the start and of the end of each step."""
    with progress_bar() as bar:
        task = bar.add_task(f"sampling with {job.method}", total=job.n * len(levels))
        answers = answers_per_shard(len(levels), job.sampler, job.n, job.batch_size, labels)
        shard_bar(bar, denoiser.store, answers)
        ticks = [time.perf_counter()]

        def on_step(images: int) -> None:
            ticks.append(time.perf_counter())
            bar.advance(task, images)

        samples = golddiff.sample(
            denoiser, job.n, job.steps, job.sampler, job.seed, labels,
            batch_size=job.batch_size, trajectory=job.trajectory is not None, on_step=on_step,
            attribution=job.explain is not None, sigmas=levels,
            start=None if image is None else (image, levels[0]),
        )  # fmt: skip
    return samples, ticks


def _explain(run: SampleRun, path: Path) -> None:
    job = run.job
    settings = {
        "sampler": job.sampler,
        "seed": job.seed,
        "start": None if job.start is None else f"{job.start}, strength {job.strength:g}",
        "labels": None if run.labels is None else ", ".join(map(str, run.labels)),
    }
    with waiting("explaining the pictures"):
        error = golddiff.write_report(run.samples, run.denoiser, path, settings=settings)
    say(f"{path}: sources of every output, which their weights reproduce within {error:.1g}")


def _draw(run: SampleRun) -> None:
    out = run.job.out
    if len(run.store.shape) == 1 and out.suffix.lower() in PICTURES:
        from golddiff.figures.points import draw_points
        from golddiff.system.pictures import save

        save("out", draw_points(run.store.images(), run.samples.images), out)
    else:
        run.samples.save(out, "out")


def _draw_trajectory(run: SampleRun, predictions: torch.Tensor, path: Path) -> None:
    from golddiff.figures.points import draw_points
    from golddiff.figures.sources import class_name
    from golddiff.figures.trajectory import ROWS, draw_trajectory
    from golddiff.system.pictures import save

    store, labels = run.store, run.labels
    if len(store.shape) == 1:
        paths: Any = draw_points(store.images(), run.samples.images, predictions)
    else:
        shown = ([None] * run.job.n if labels is None else labels)[:ROWS]
        names = ["" if label is None else class_name(store, label) for label in shown]
        rows = [(name, predictions[:, i]) for i, name in enumerate(names)]
        title = f"{run.job.method} over {store.manifest.source}: the prediction x0 of each step"
        sizes = None if (subsets := run.subsets) is None else _size_texts(subsets, shown)
        paths = draw_trajectory(rows, run.samples.sigmas, sizes, title)
    save("trajectory", paths, path)


def _size_texts(subsets: list[dict[str, Any]], shown: Sequence[int | None]) -> list[str]:
    """The golden subset size of each step; a range where the classes shown differ."""
    sizes = [s["k"] for s in subsets if s["label"] in shown]
    ranges = [(min(ks), max(ks)) for ks in zip(*sizes, strict=True)]
    return [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high in ranges]
