"""``golddiff prepare``: make beforehand what a first run would wait for."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from golddiff import __version__
from golddiff.cli.command import command
from golddiff.cli.novelty import measure_dial
from golddiff.cli.options import JsonPath, MethodName, MethodOptions, Threads
from golddiff.cli.parse import parse_labels, parse_numbers
from golddiff.cli.summary import describe, summary
from golddiff.cli.terminal import progress_bar, say, show, write_json
from golddiff.estimators.registry import DEFAULT_METHOD, check_method, create
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff.system.units import duration

if TYPE_CHECKING:
    from rich.table import Table

    from golddiff.cli.preparing import Part
    from golddiff.denoiser import Denoiser


@dataclass(frozen=True)
class PrepareOptions:
    """The options of ``golddiff prepare``."""

    store: Annotated[Path, typer.Argument(help="A folder that golddiff index made.")]
    method: MethodName = DEFAULT_METHOD
    steps: Annotated[
        int | None,
        typer.Option(
            help="Noise levels of a run of so many steps; default 10.", show_default=False
        ),
    ] = None
    sampler: Annotated[
        str | None,
        typer.Option(help="Whose noise levels: ddim (default) or heun.", show_default=False),
    ] = None
    sigmas: Annotated[
        str | None,
        typer.Option(help="These noise levels instead, with commas between.", show_default=False),
    ] = None
    labels: Annotated[
        str | None,
        typer.Option(
            help="Classes to measure adaptive supports for, with commas between; default: all "
            "images together.",
            show_default=False,
        ),
    ] = None
    verbose: Annotated[
        bool,
        typer.Option("--verbose", help="Say what was chosen at each noise level, and by what."),
    ] = False
    json: JsonPath = None
    threads: Threads = None
    method_options: MethodOptions = field(default_factory=MethodOptions)


@command
def prepare(options: PrepareOptions) -> None:
    """Make what a first run would wait for: covariance, masks, the index of large sets, kernels.

    It is kept in the store's folder. With the method's options and the steps of the runs to come;
    what is there already is left as it is.

    For example:

      golddiff prepare cifar.store --method golddiff-pca

      golddiff prepare cifar.store --method adaptive-pca --tol 0.05 --steps 20 --verbose
    """
    method, steps, sampler = options.method, options.steps, options.sampler
    threads, labels, json = options.threads, options.labels, options.json
    settings = options.method_options.settings()
    check_method(method, settings)
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads: got {threads}, expected 1 or more")
    if options.sigmas is not None and (steps, sampler) != (None, None):
        raise ArgumentError("sigmas: gives the noise levels itself, without --steps and --sampler")
    levels = parse_numbers("sigmas", options.sigmas)
    if json is not None:
        check_writable("json", json)

    from golddiff.cli.preparing import check_levels
    from golddiff.cli.preparing import prepare as make
    from golddiff.sampling import check_settings, noise_levels
    from golddiff.store.images import ImageStore
    from golddiff.system.parallel import use_threads

    if levels is None:
        check_settings(1, 10 if steps is None else steps, sampler or "ddim", 0)
        levels = tuple(noise_levels(10 if steps is None else steps, sampler or "ddim"))
    check_levels("sigmas", levels)
    if threads is not None:
        use_threads(threads)
    start = time.perf_counter()
    opened = ImageStore.open(options.store)
    classes: list[int | None] = [None]
    if labels is not None:
        classes = [*dict.fromkeys(parse_labels(labels, opened, labels.count(",") + 1) or ())]
    if method == "recommended":
        measure_dial(opened)
    denoiser = create(method, opened, settings)
    with progress_bar() as bar:
        tasks: dict[str, Any] = {}

        def watch(name: str, done: int, total: int) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(name, total=total)
            bar.update(tasks[name], completed=done)

        parts = make(denoiser, levels, classes, watch)
    say(describe(opened))
    show(_table(parts))
    say(
        f"{method} is prepared for {len(levels)} noise level{'s' if len(levels) > 1 else ''}, "
        f"{duration(time.perf_counter() - start)}"
    )
    if options.verbose:
        for line in _choices(denoiser, levels, classes):
            say(line)
    if json is not None:
        figures = {
            "golddiff": __version__, "store": summary(opened), "method": method,
            "settings": settings.given(), "sigmas": list(levels), "labels": classes,
            "seconds": time.perf_counter() - start, "parts": [vars(part) for part in parts],
        }  # fmt: skip
        write_json(json, figures)


def _choices(
    denoiser: Denoiser, levels: Sequence[float], classes: Sequence[int | None]
) -> Iterator[str]:
    """How the images of each level and class are chosen."""
    from golddiff.estimators.golden import GoldDiff

    if not isinstance(denoiser, GoldDiff):
        return
    for label in classes:
        of_class = "" if label is None else f", class {label}"
        for sigma in levels:
            yield f"sigma {sigma:.3g}{of_class}: {denoiser.describe_step(sigma, label)}"


def _table(parts: list[Part]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("part", "made now", "there already", "time"):
        table.add_column(name, justify="left" if name == "part" else "right", no_wrap=True)
    for part in parts:
        table.add_row(part.name, f"{part.made}", f"{part.there}", duration(part.seconds))
    return table
