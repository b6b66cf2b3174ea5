"""``golddiff bench step | scaling | enlarge``: times that can be trusted."""

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
    help="Time methods, and other people's code, in one run beside the machine's own rates.",
    rich_markup_mode="rich",
)


@bench.command()
@command
def step(options: StepJob) -> None:
    """Time one denoising step at every noise level, with its error against the full scan.

    All sides get the same noisy images and take turns, each in a process of its own. Mask
    threshold, patch size, boundary rule and subset sizes are every side's that has them, peers'
    included.

    For example:

      golddiff bench step cifar.store --method golddiff-pca,golddiff-optimal

      golddiff bench step cifar.store --peer GoldDiff/ --memory --json race.json

      golddiff bench step cifar.store --method golddiff-optimal --peer faiss --batch 16

      golddiff bench step cifar.store --method kamb --patch-size 5 --limit 2000 --levels 1 --batch 1
      --repeats 1 --peer convolutional_diffusion/
    """
    options.check()
    starting()

    from golddiff_lab.bench import step_report as report
    from golddiff_lab.bench.step import run

    with progress_bar() as bar:
        task = bar.add_task("", total=None)
        outcome = run(options, lambda what: bar.update(task, description=what))
    figures = report.figures(options, outcome)
    say(
        f"{describe(outcome.store)}; batch {options.batch}, {options.repeats} timed steps a level, "
        f"{outcome.machine.threads} threads, queries: {options.queries_from}"
    )
    say(report.machine_line(outcome.machine))
    say(*report.levels_table(figures), *report.notes(options, outcome))
    if options.memory:
        say(*report.memory_table(outcome))
    for row in outcome.rows if options.verbose else ():
        if row["description"] is not None:
            say(f"sigma {row['sigma']:.3g}, {row['side']}: {row['description']}")
    about = {"golddiff": __version__, "store": summary(outcome.store)}
    write_json(options.json, {**about, **figures})


@bench.command()
@command
def scaling(options: ScalingJob) -> None:
    """Time, memory and error against the number of images.

    Every size and method is measured in a process of its own and kept in the cache folder
    ($GOLDDIFF_CACHE): a run that was interrupted goes on where it was.

    For example:

      golddiff bench scaling --data million.store --plot scaling.png

      golddiff bench scaling --data patches --sizes 2000,8000,32000 --method golddiff-pca
    """
    options.check()
    starting()

    from golddiff_lab.bench import scaling_report as report
    from golddiff_lab.bench.scaling import run

    with progress_bar() as bar:
        task = bar.add_task("", total=None)
        outcome = run(options, lambda what: bar.update(task, description=what))
    say(*report.lines(options, outcome))
    if options.plot is not None:
        from golddiff.figures.curves import draw_panels
        from golddiff.system.pictures import save

        save("plot", draw_panels(report.panels(options, outcome)), options.plot)
    write_json(options.json, {"golddiff": __version__, **report.figures(options, outcome)})


@dataclass(frozen=True)
class EnlargeOptions:
    """The options of ``golddiff bench enlarge``."""

    store: Path = argument("A folder that golddiff index made.")
    out: Path = argument("The folder to make.")
    limit: int = option("Images of the new set.")
    seed: int = option("Of the changes.", 0)
    overwrite: bool = option("Replace a store that is there already.", False)


@bench.command()
@command
def enlarge(options: EnlargeOptions) -> None:
    """Make a store of a store's images and changed copies of them. Not real data: for timing.

    For example:

      golddiff bench enlarge imagenet64.store million.store --limit 1280000
    """
    asked = SourceOptions(limit=options.limit, seed=options.seed)  # checked before anything is read

    from golddiff.store.images import ImageStore
    from golddiff_lab.enlarged import enlarge

    store = ImageStore.open(options.store)
    n, seed = options.limit, asked.seed
    say(describe(enlarge(store, n, options.out, seed, overwrite=options.overwrite)))
