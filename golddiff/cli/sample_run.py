"""``golddiff sample``: check everything that can fail, sample, draw, report."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff import __version__
from golddiff.cli.cluster import answers_of_each, cluster_figures, open_sharded, shard_bars
from golddiff.cli.command import command
from golddiff.cli.novelty import measure_dial, novelty_figures, novelty_lines
from golddiff.cli.options import ReadingOptions
from golddiff.cli.parse import parse_labels
from golddiff.cli.sample import SampleJob
from golddiff.cli.summary import describe, summary
from golddiff.cli.terminal import progress_bar, say, watched, write_json
from golddiff.estimators.registry import METHODS, check_method, create, memory_needed
from golddiff.store.cache import SourceOptions, cached_store
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES, check_writable
from golddiff.system.units import duration

if TYPE_CHECKING:
    import torch

    from golddiff.denoiser import Denoiser
    from golddiff.sampling import Samples
    from golddiff.store.images import ImageStore

# A gigabyte of float32: more images than a picture can show.
MOST_VALUES = 2**28
# What a run without --data is of: crops of two photographs, ready in seconds.
DEFAULT_DATA = ("patches", SourceOptions(skip_bad=True, limit=1000))

ALLOWED = {"out": (*PICTURES, ".npz"), "json": (), "explain": (".html", ".htm")}


@dataclass(frozen=True)
class Clock:
    """When a run began, and when each step of each batch was done, in seconds."""

    steps: int
    ticks: list[float] = field(default_factory=lambda: [time.perf_counter()])

    def tick(self) -> None:
        """Another step of the batch at hand is done."""
        self.ticks.append(time.perf_counter())

    @property
    def per_step(self) -> list[float]:
        """Seconds of each step, summed over batches."""
        each = [after - before for before, after in pairwise(self.ticks)]
        return [sum(each[step :: self.steps]) for step in range(self.steps)]

    @property
    def total(self) -> float:
        """Seconds from the start to the last tick."""
        return self.ticks[-1] - self.ticks[0]


@command
def sample(options: SampleJob) -> None:
    """Generate images from noise, and draw them as one picture.

    For example:

      golddiff sample

      golddiff sample --data photos/ --size 64 --n 64 --novelty 0.5 --out grid.png

      golddiff sample --store cifar.store --method pca --labels 3 --json run.json

      golddiff sample --n 8 --explain report.html

      golddiff sample --data photos/ --size 64 --start photo.jpg --strength 0.5 --out pictures/

      golddiff sample --data moons --method optimal --n 500 --trajectory paths.png

      golddiff sample --cluster head:6379 --store shards/ --method golddiff-pca
    """
    run_sample(options)


def run_sample(job: SampleJob) -> None:
    """Generate the images, write the pictures and the figures, say where they are.

    Raises:
        GoldDiffError: bad input, told before any image is generated.
    """
    _check(job)

    from golddiff.samplers import level_of_strength, noise_levels
    from golddiff.sources.picture import fitted, read_picture

    first = None if job.start is None else level_of_strength(job.strength)
    store = _open(job)
    _check_room(job, store)
    labels = parse_labels(job.labels, store, job.n)
    image = None if job.start is None else fitted(read_picture("start", job.start), store.shape)
    _check_explainable(job, store)
    if job.method == "recommended":
        measure_dial(store)
    denoiser = create(job.method, store, job.settings, job.seed)
    _fit_to_address_space(denoiser)
    levels = noise_levels(job.steps, job.sampler, first)
    _prepare(denoiser, levels, labels)
    subsets = golden_subsets(denoiser, levels, labels)
    samples, clock = _generate(job, denoiser, labels, levels, image)
    if job.explain is not None:
        _explain(job, job.explain, denoiser, samples, labels)
    _draw(job, store, samples, subsets, labels)
    each = clock.total / (job.n * len(levels))
    if job.json is not None:
        write_json(job.json, _figures(job, store, samples, labels, subsets, clock))
    if samples.share < 1:
        say(f"only {samples.share:.1%} of the training images were seen: shards are missing")
    noun = ("point" if len(store.shape) == 1 else "image") + ("" if job.n == 1 else "s")
    say(
        f"{job.out}: {job.n:,} {noun} by {job.method}, "
        f"{duration(clock.total)}, {duration(each)} an image and step"
    )
    for line in novelty_lines(job, store, samples):
        say(line)


def _prepare(denoiser: Denoiser, sigmas: list[float], labels: list[int] | None) -> None:
    """What a method finds out about a store once takes long enough to be told."""
    from golddiff.estimators.network_like import NetworkLike

    if isinstance(denoiser, NetworkLike) and not denoiser.is_ready:
        say("weighing the parts of network_like on images left out, once for this store")
        denoiser.blend  # noqa: B018  made now, not in the first step


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
    entries = []
    classes: list[int | None] = [None] if labels is None else list(dict.fromkeys(labels))
    for label in classes:
        count = denoiser.store.count_of(label)
        budgets = [denoiser.schedule.budgets(sigma, count) for sigma in sigmas]
        entries.append(
            {
                "label": label,
                "images": count,
                "m": [m for m, _ in budgets],
                "k": [k for _, k in budgets],
            }
        )
    return entries


def _check(job: SampleJob) -> None:
    """Everything that can be told without opening or building a store."""
    if job.data is not None and job.store is not None:
        raise ArgumentError("store: give --data or --store, not both")
    if job.store is not None and job.reading != ReadingOptions():
        raise ArgumentError(
            "store: --size, --channels, --split, --column, --label-column, --skip-bad and --limit "
            "apply to --data; a store was read already"
        )
    if job.cluster is not None and job.store is None:
        raise ArgumentError("store: --cluster needs --store, what golddiff index --cluster made")
    if job.allow_missing and job.cluster is None:
        raise ArgumentError("allow-missing: applies to --cluster only")
    check_method(job.method, job.settings)
    outputs = [
        ("out", job.out if job.out.suffix else job.out / "grid.png"),
        ("trajectory", job.trajectory),
        ("explain", job.explain),
        ("json", job.json),
    ]
    seen: dict[Path, str] = {}
    for name, path in outputs:
        if path is None:
            continue
        check_writable(name, path, ALLOWED.get(name, PICTURES))
        other = seen.setdefault(path.resolve(), name)
        if other != name:
            raise ArgumentError(f"{name}: {path} is also what --{other} writes")
    if job.threads is not None and job.threads < 1:
        raise ArgumentError(f"threads: got {job.threads}, expected 1 or more")

    from golddiff.sampling import check_settings

    check_settings(job.n, job.steps, job.sampler, job.seed, job.batch_size)
    if job.start is None and job.strength != SampleJob.strength:
        raise ArgumentError("strength: applies to --start only")


def _fit_to_address_space(denoiser: Denoiser) -> None:
    import torch

    from golddiff.cli.address_space import fit
    from golddiff.store.images import ImageStore

    if isinstance(denoiser.store, ImageStore):
        fit(denoiser, torch.get_num_threads())


def _check_room(job: SampleJob, store: ImageStore) -> None:
    if len(store.shape) == 1 and not job.out.suffix:
        raise ArgumentError(f"out: got the folder {job.out}, but points are no pictures; name one")
    each = math.prod(store.shape) * (1 if job.trajectory is None else 1 + job.steps)
    most = MOST_VALUES // each
    if job.n > most:
        hint = "" if job.trajectory is None else " with --trajectory"
        raise ArgumentError(
            f"n: got {job.n:,}, expected at most {most:,} of this shape{hint}; for more, call "
            "golddiff.sample with one seed after another"
        )


def _check_explainable(job: SampleJob, store: ImageStore) -> None:
    if job.explain is None:
        return
    if job.cluster is not None:
        raise ArgumentError(
            "explain: the report looks at every training image, and those of a cluster are not "
            "here; golddiff.sample(..., attribution=True) tells the sources"
        )
    if not METHODS[job.method].has_sources:
        raise ArgumentError(
            f"explain: what {job.method} returns is not, or not all, a weighted sum of training "
            "images, so there are no sources; choose another method, say --method recommended"
        )
    if len(store.shape) != 3:
        raise ArgumentError("explain: shows images, and this training set holds points")


def _open(job: SampleJob) -> ImageStore:
    from golddiff.store.images import ImageStore

    if job.cluster is not None:
        assert job.store is not None
        return open_sharded(job.store, job.cluster, job.allow_missing)
    if job.store is not None:
        return ImageStore.open(job.store)
    needed = memory_needed(job.method, job.settings)
    source, reading = job.data or DEFAULT_DATA[0], job.reading.source(skip_bad=True)
    if job.data is None and job.reading == ReadingOptions():
        reading = DEFAULT_DATA[1]
    return cached_store(
        source,
        reading,
        say=say,
        progress=watched(),
        needed=needed,
    )


def _generate(
    job: SampleJob,
    denoiser: Denoiser,
    labels: list[int] | None,
    levels: list[float],
    image: torch.Tensor | None,
) -> tuple[Samples, Clock]:
    from golddiff.sampling import sample
    from golddiff.system.parallel import use_threads

    if job.threads is not None:
        use_threads(job.threads)
    with progress_bar() as bar:
        task = bar.add_task(f"sampling with {job.method}", total=job.n * len(levels))
        answers = answers_of_each(len(levels), job.sampler, job.n, job.batch_size, labels)
        shard_bars(bar, denoiser.store, answers)
        clock = Clock(len(levels))

        def on_step(images: int) -> None:
            clock.tick()
            bar.advance(task, images)

        samples = sample(
            denoiser, job.n, job.steps, job.sampler, job.seed, labels,
            batch_size=job.batch_size, trajectory=job.trajectory is not None, on_step=on_step,
            attribution=job.explain is not None, sigmas=levels,
            start=None if image is None else (image, levels[0]),
        )  # fmt: skip
    return samples, clock


def _explain(
    job: SampleJob, path: Path, denoiser: Denoiser, samples: Samples, labels: list[int] | None
) -> None:
    from golddiff.evaluation.report import write_report

    settings = {
        "sampler": job.sampler,
        "seed": job.seed,
        "start": None if job.start is None else f"{job.start}, strength {job.strength:g}",
        "labels": None if labels is None else ", ".join(map(str, dict.fromkeys(labels))),
    }
    off = write_report(samples, denoiser, path, settings=settings)
    say(f"{path}: sources of every output; weights summed again are within {off:.1g}")


def _draw(
    job: SampleJob,
    store: ImageStore,
    samples: Samples,
    subsets: list[dict[str, Any]] | None,
    labels: list[int] | None,
) -> None:
    from golddiff.figures.points import draw_points
    from golddiff.figures.sources import class_name
    from golddiff.figures.trajectory import ROWS, Row, draw_trajectory
    from golddiff.system.pictures import save

    plain = len(store.shape) == 1
    if plain and job.out.suffix.lower() in PICTURES:
        save("out", draw_points(store.images(), samples.images), job.out)
    else:
        samples.save(job.out, "out")
    if job.trajectory is None or samples.trajectory is None:
        return
    if plain:
        paths: Any = draw_points(store.images(), samples.images, samples.trajectory)
    else:
        rows = [
            Row("" if labels is None else class_name(store, labels[i]), samples.trajectory[:, i])
            for i in range(min(job.n, ROWS))
        ]
        shown = None if labels is None else set(labels[:ROWS])
        title = f"{job.method} over {store.manifest.source}: the prediction x0 of each step"
        paths = draw_trajectory(rows, samples.sigmas, _size_texts(subsets, shown), title)
    save("trajectory", paths, job.trajectory)


def _size_texts(subsets: list[dict[str, Any]] | None, shown: set[int] | None) -> list[str] | None:
    """The golden subset size of each step; a range where the classes shown differ."""
    if subsets is None:
        return None
    sizes = [s["k"] for s in subsets if shown is None or s["label"] in shown]
    ranges = [(min(ks), max(ks)) for ks in zip(*sizes, strict=True)]
    return [f"{low:,}" if low == high else f"{low:,}-{high:,}" for low, high in ranges]


def _figures(
    job: SampleJob,
    store: ImageStore,
    samples: Samples,
    labels: list[int] | None,
    subsets: list[dict[str, Any]] | None,
    clock: Clock,
) -> dict[str, Any]:
    about = summary(store)
    return {
        "golddiff": __version__,
        "method": job.method,
        "settings": job.settings.given(),
        "store": {"description": describe(store), **about},
        "n": job.n,
        "steps": job.steps,
        "sampler": job.sampler,
        "seed": job.seed,
        "start": None if job.start is None else {"path": str(job.start), "strength": job.strength},
        "labels": labels,
        "sigmas": samples.sigmas,
        "golden_subsets": subsets,
        "seconds": {
            "total": clock.total,
            "per_image_and_step": clock.total / (job.n * len(samples.sigmas)),
            "per_step": clock.per_step,
        },
        "novelty": novelty_figures(store, samples),
        "cluster": cluster_figures(store, samples, job.cluster),
        "out": str(job.out),
        "trajectory": None if job.trajectory is None else str(job.trajectory),
        "explain": None if job.explain is None else str(job.explain),
    }
