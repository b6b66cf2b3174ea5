"""``golddiff bench scaling``: cost against the number of images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff import __version__
from golddiff.cli.options import JsonPath, MaskThreshold, Tol, Variant, method_settings
from golddiff.cli.terminal import progress_bar, say, show, write_json
from golddiff.estimators.registry import method_named
from golddiff.system.files import check_writable
from golddiff_lab.arguments import whole_numbers

_DATA = (
    "enlarged:SOURCE, or a store of at least the largest size: the smaller sets are its first "
    "images. Or several stores (repeated)."
)


def scaling(
    data: Annotated[list[str], typer.Option(help=_DATA)],
    sizes: Annotated[
        str, typer.Option(help="Numbers of images, with commas between; of one source.")
    ] = "10000,100000,1280000",
    method: Annotated[
        list[str] | None,
        typer.Option(
            help="Methods, repeated or with commas; default adaptive-optimal, adaptive-pca, "
            "golddiff-optimal, golddiff-pca.",
            show_default=False,
        ),
    ] = None,
    batch: Annotated[
        int,
        typer.Option("--batch-size", "--batch", help="Images of one step and of the whole run."),
    ] = 16,
    repeats: Annotated[int, typer.Option(help="Timed steps a level.")] = 3,
    seconds: Annotated[
        float,
        typer.Option(help="Time a level may take, about; slower steps have fewer queries."),
    ] = 20.0,
    truth_queries: Annotated[
        int, typer.Option(help="Queries that errors are measured at; 0 for no errors.")
    ] = 4,
    truth_seconds: Annotated[
        float, typer.Option(help="Time the full scans of a size and estimator may take, about.")
    ] = 1200.0,
    memory_limit: Annotated[
        float, typer.Option(help="Bytes of a store's files that may be resident at a time.")
    ] = 2e9,
    seed: Annotated[int, typer.Option(help="Of noise, held-out images and random picks.")] = 0,
    threads: Annotated[
        int | None, typer.Option(help="Threads to use; default: all cores.", show_default=False)
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Measure again what an earlier run has measured.")
    ] = False,
    tol: Tol = None,
    mask_threshold: MaskThreshold = None,
    variant: Variant = None,
    plot: Annotated[
        Path | None,
        typer.Option(help="Draw it to this file (.png, .jpg, .webp).", show_default=False),
    ] = None,
    json: JsonPath = None,
) -> None:
    """Time, memory, bytes read and error against the number of images.

    Every size and method is measured in a process of its own and kept in the cache folder
    ($GOLDDIFF_CACHE): a run that was interrupted goes on where it was.

    For example:

      golddiff bench scaling --data enlarged:imagenet64.store --plot scaling.png

      golddiff bench scaling --data enlarged:digits --sizes 2000,8000,32000 --method golddiff-pca
    """
    from golddiff.figures.pictures import SUFFIXES
    from golddiff_lab.scaling.job import COMPARED, ScalingJob

    names = tuple(method_named(name) for text in method or COMPARED for name in text.split(","))
    settings = method_settings(
        mask_threshold, None, None, None, variant, None, None, None, None, tol
    )
    job = ScalingJob(
        tuple(data), whole_numbers("sizes", sizes), names, settings, batch, repeats, seconds,
        truth_queries, truth_seconds, memory_limit, seed, threads, fresh,
    )  # fmt: skip
    job.check()
    if json is not None:
        check_writable("json", json)
    if plot is not None:
        check_writable("plot", plot, SUFFIXES)

    from golddiff_lab.scaling import report
    from golddiff_lab.scaling.run import run
    from golddiff_lab.step import report as of_steps

    with progress_bar() as bar:
        task = bar.add_task("", total=None)
        outcome = run(job, lambda what: bar.update(task, description=what))
    say(of_steps.machine_line(outcome.machine))
    show(report.times_table(job, outcome))
    if truth_queries:
        show(report.errors_table(job, outcome))
    show(report.memory_table(job, outcome))
    for line in report.notes(job, outcome):
        say(line)
    say(f"kept in {outcome.folder}")
    if plot is not None:
        from golddiff.figures.curves import draw_panels
        from golddiff.figures.pictures import save

        save("plot", draw_panels(report.panels(job, outcome)), plot)
    if json is not None:
        write_json(json, {"golddiff": __version__, **report.figures(job, outcome)})
