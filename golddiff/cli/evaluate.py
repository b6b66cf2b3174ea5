"""``golddiff evaluate``: check, run the oracle, run each method, print and draw."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from golddiff.cli.command import command
from golddiff.cli.evaluate_figures import difference, figures, write_folder
from golddiff.cli.first_use import create_with_bars
from golddiff.cli.options import (
    BatchSize,
    JsonPath,
    Labels,
    SamplerName,
    Seed,
    Steps,
    advanced,
)
from golddiff.cli.parse import parse_labels
from golddiff.cli.terminal import progress_bar, say, show, starting, waiting, write_json
from golddiff.estimators.registry import METHODS, MethodSettings, check_method, method_named
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff.system.units import byte_size, duration

if TYPE_CHECKING:
    from golddiff.evaluation.compare import Evaluation
    from golddiff.evaluation.references import Oracle
    from golddiff.evaluation.runs import Run, RunSettings
    from golddiff.store.images import ImageStore


def _all_named(given: list[str] | None) -> list[str] | None:
    return given and [method_named(name) for name in given]


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of ``golddiff evaluate``."""

    store: Annotated[Path, typer.Argument(help="A store that golddiff index made.")]
    oracle: Annotated[
        Path, typer.Option(help="The network's weights: a file or a folder.", metavar="PATH")
    ]
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Repeat for several: {', '.join(METHODS)}. Default golddiff-pca.",
            show_default=False, metavar="NAME",
            callback=_all_named,
        ),
    ] = None  # fmt: skip
    n: Annotated[int, typer.Option("--n", help="How many images; the paper's 128.")] = 128
    steps: Steps = 10
    seed: Seed = 0
    labels: Labels = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for evaluation.json, curves.png and images.png.", show_default=False
        ),
    ] = None
    json: JsonPath = None
    single_step: Annotated[
        bool,
        typer.Option(
            "--single-step/--no-single-step",
            help="Also the error of each step alone, at the oracle's states; takes as long again.",
        ),
    ] = True
    settings: MethodSettings = field(default_factory=MethodSettings)
    sampler: SamplerName = "ddim"
    oracle_sampler: Annotated[
        str | None,
        advanced(
            "The oracle's sampler, where it is another than the methods'.", show_default=False
        ),
    ] = None
    batch_size: BatchSize = 16


@command
def evaluate(options: EvaluateOptions) -> None:
    """Compare methods with a trained network: the same noise, MSE and r2 image by image.

    For example:

      golddiff evaluate cifar.store --oracle cifar-oracle/ --method pca --method golddiff-pca

      golddiff evaluate mnist.store --oracle mnist-oracle/ --n 16 --out compared/
    """
    each = settings_of_each(tuple(options.method or ["golddiff-pca"]), options.settings)
    if options.out is not None:
        check_writable("out", options.out / "evaluation.json")

    starting()
    from golddiff.store.images import ImageStore

    ours, theirs = _run_settings(options, None)
    store = ImageStore.open(options.store)
    with waiting("the network's checksum"):
        from golddiff.evaluation.references import Oracle

        oracle = Oracle.at(options.oracle)
    ours, theirs = _run_settings(options, store)
    reference = _reference(oracle, store, theirs)
    made = {
        name: _evaluated(name, own, store, reference, ours, options) for name, own in each.items()
    }
    _tell(made)
    if options.json is None and options.out is None:
        return
    results = figures(store, oracle, made, each)
    if options.json is not None:
        write_json(options.json, results)
    if options.out is not None:
        write_folder(options.out, store, reference, made, results)


def settings_of_each(
    methods: tuple[str, ...], settings: MethodSettings
) -> dict[str, MethodSettings]:
    """What of the settings each method has; one that none of them has is an error."""
    for i, name in enumerate(methods):
        check_method(name, MethodSettings())
        if name in methods[:i]:
            raise ArgumentError(f"method: {name} is given twice")
    for setting in settings.given():
        if not any(setting in METHODS[name].settings for name in methods):
            check_method(methods[0], settings)
    each = {}
    for name in methods:
        others = {f.name: None for f in fields(settings) if f.name not in METHODS[name].settings}
        each[name] = replace(settings, **others)
        check_method(name, each[name])
    return each


def _run_settings(
    options: EvaluateOptions, store: ImageStore | None
) -> tuple[RunSettings, RunSettings]:
    """Of the methods and of the oracle; without a store only checked."""
    from golddiff.evaluation.runs import settings_of

    labels = None if store is None else parse_labels(options.labels, store, options.n)
    ours, theirs = (
        settings_of(options.n, options.steps, sampler, options.seed, labels, options.batch_size)
        for sampler in (options.sampler, options.oracle_sampler or options.sampler)
    )
    return ours, theirs


def _reference(oracle: Oracle, store: ImageStore, settings: RunSettings) -> Run:
    from golddiff.evaluation.references import reference_run

    with progress_bar() as bar:
        task = bar.add_task("the oracle's images", total=settings.n * settings.steps)
        return reference_run(
            oracle, store, settings, on_step=lambda images: bar.advance(task, images)
        )


def _evaluated(
    name: str,
    method: MethodSettings,
    store: ImageStore,
    reference: Run,
    settings: RunSettings,
    options: EvaluateOptions,
) -> Evaluation:
    from golddiff.evaluation.compare import compare

    denoiser = create_with_bars(name, store, method, options.seed)
    with progress_bar() as bar:
        task = bar.add_task(f"evaluating {name}", total=settings.n * settings.steps)
        return compare(
            denoiser, reference, settings, single_step=options.single_step,
            on_step=lambda images: bar.advance(task, images),
        )  # fmt: skip


def _tell(made: dict[str, Evaluation]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method")
    for column in ("MSE", "95%", "r2", "95%", "an image and step", "peak memory"):
        table.add_column(column, justify="right")
    for name, evaluation in made.items():
        mse, r2 = evaluation.mse, evaluation.r2
        table.add_row(
            name, f"{mse.mean:.4f}", f"{mse.low:.4f} to {mse.high:.4f}",
            f"{r2.mean:.3f}", f"{r2.low:.3f} to {r2.high:.3f}",
            duration(evaluation.seconds),
            f"{byte_size(evaluation.memory.bytes)} ({evaluation.memory.kind})",
        )  # fmt: skip
    show(table)
    (first, baseline), *others = made.items()
    for name, evaluation in others:
        apart = difference(evaluation, baseline)
        mse, r2 = apart["mse"], apart["r2"]
        say(
            f"{name} less {first}, image by image: MSE {mse.mean:+.4f} ({mse.low:+.4f} to "
            f"{mse.high:+.4f}), r2 {r2.mean:+.3f} ({r2.low:+.3f} to {r2.high:+.3f})"
        )
