"""``golddiff bench step | scaling | enlarge``: reliable timings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import typer

from golddiff import __version__
from golddiff.cli.command import argument, command, option
from golddiff.cli.terminal import describe, progress_bar, say, starting, summary, write_json
from golddiff.sources.source_options import SourceOptions
from golddiff_lab.bench.scaling_job import ScalingJob
from golddiff_lab.bench.step_job import StepJob

bench = typer.Typer(
    help="Time methods and other projects' code, along with the speed of the machine itself.",
    rich_markup_mode="rich",
)


@bench.command()
@command
def step(job: StepJob) -> None:
    """Time one denoising step at every noise level, with its error against the full scan.

    Methods and peers get the same noisy images and take turns, each in its own process. Mask
    threshold, patch size, boundary rule and subset sizes apply to all of them that have such a
    setting.

    For example:

      golddiff bench step cifar.store --method golddiff-pca,golddiff-optimal
      golddiff bench step cifar.store --peer GoldDiff/ --json race.json
      golddiff bench step cifar.store --method golddiff-optimal --peer faiss --batch 16
      golddiff bench step cifar.store --method kamb --patch-size 5 --limit 2000 --levels 1 --batch 1
      --repeats 1 --peer convolutional_diffusion/
    """
    job.check()
    starting()

    from golddiff_lab.bench import step_report as report
    from golddiff_lab.bench.step import run

    with progress_bar() as bar:
        task = bar.add_task("", total=None)
        outcome = run(job, lambda what: bar.update(task, description=what))
    figures = report.figures(job, outcome)
    say(
        f"{describe(outcome.store)}; batch {job.batch}, {job.repeats} timed steps "
        f"per level, {outcome.machine.threads} threads, queries: {job.queries_from}"
    )
    say(report.machine_line(outcome.machine))
    say(*report.levels_table(figures), *report.notes(job, outcome))
    say(*report.memory_table(outcome))
    header = {"golddiff": __version__, "store": summary(outcome.store)}
    write_json(job.json, {**header, **figures})


@bench.command()
@command
def scaling(job: ScalingJob) -> None:
    """Measure time, memory and error as a function of the number of training images.

    Each size and method runs in its own process; the results are kept in the cache folder
    ($GOLDDIFF_CACHE), so that an interrupted run continues where it stopped.

    For example:

      golddiff bench scaling --data million.store --plot scaling.png
      golddiff bench scaling --data patches --sizes 2000,8000,32000 --method golddiff-pca
    """
    job.check()
    starting()

    from golddiff_lab.bench import scaling_report as report
    from golddiff_lab.bench.scaling import run

    with progress_bar() as bar:
        task = bar.add_task("", total=None)
        outcome = run(job, lambda what: bar.update(task, description=what))
    say(*report.lines(job, outcome))
    if job.plot is not None:
        from golddiff.figures.curves import draw_panels
        from golddiff.system.pictures import save

        save("plot", draw_panels(report.panels(job, outcome)), job.plot)
    write_json(job.json, {"golddiff": __version__, **report.figures(job, outcome)})


@dataclass(frozen=True)
class EnlargeOptions:
    """The options of ``golddiff bench enlarge``."""

    store: Path = argument("A store made by golddiff index.")
    out: Path = argument("The folder to create for the new store.")
    limit: int = option("Number of images in the new store.")
    seed: int = option("Seed of the random changes.", 0)
    overwrite: bool = option("Replace an existing store.", False)


@bench.command()
@command
def enlarge(options: EnlargeOptions) -> None:
    """Enlarge a store with modified copies of its images. For timing only: it is not real data.

    For example:

      golddiff bench enlarge imagenet64.store million.store --limit 1280000
    """
    checked = SourceOptions(limit=options.limit, seed=options.seed)  # raises before any reading

    from golddiff.store.images import ImageStore
    from golddiff_lab.enlarged import enlarge

    store = ImageStore.open(options.store)
    n, seed = options.limit, checked.seed
    say(describe(enlarge(store, n, options.out, seed, overwrite=options.overwrite)))
