"""What ``golddiff evaluate`` does: check, run the oracle, run each method, tell and draw."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff import __version__
from golddiff.cli.parse import parse_labels
from golddiff.cli.summary import describe, summary
from golddiff.cli.terminal import progress_bar, say, write_json
from golddiff.errors import ArgumentError
from golddiff.files import check_writable
from golddiff.methods import METHODS, MethodSettings, check_method, make_denoiser
from golddiff.units import duration

if TYPE_CHECKING:
    from golddiff.evaluation.compare import Evaluation
    from golddiff.evaluation.references import Oracle
    from golddiff.evaluation.runs import Run, RunSettings
    from golddiff.figures.curves import Panel
    from golddiff.store import ImageStore

SHOWN = 8


@dataclass(frozen=True)
class EvaluateJob:
    """The options of ``golddiff evaluate``, parsed."""

    store: Path
    oracle: Path
    methods: tuple[str, ...]
    settings: MethodSettings
    n: int
    steps: int
    sampler: str
    oracle_sampler: str
    seed: int
    labels: str | None
    batch: int
    single_step: bool
    json: Path | None
    out: Path | None


def run_evaluate(job: EvaluateJob) -> None:
    """Evaluate each method, print the table, write the figures and pictures.

    Raises:
        GoldDiffError: bad input, told before any method runs.
    """
    settings = _checked(job)
    from golddiff.evaluation.references import Oracle
    from golddiff.store import ImageStore

    store = ImageStore.open(job.store)
    oracle = Oracle.at(job.oracle)
    ours, theirs = _run_settings(job, store)
    reference = _reference(oracle, store, theirs)
    made = {
        name: _evaluated(job, store, reference, ours, name, own) for name, own in settings.items()
    }
    _tell(made)
    if job.json is None and job.out is None:
        return
    figures = _figures(job, store, oracle, made, settings)
    if job.json is not None:
        write_json(job.json, figures)
    if job.out is not None:
        _write_folder(job.out, store, reference, made, figures)


def settings_of_each(
    methods: tuple[str, ...], settings: MethodSettings
) -> dict[str, MethodSettings]:
    """What of the settings each method has; one that none of them has is an error.

    Raises:
        ArgumentError: an unknown method, one named twice, or a setting that none of them has.
    """
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


def _checked(job: EvaluateJob) -> dict[str, MethodSettings]:
    each = settings_of_each(job.methods, job.settings)
    if job.json is not None:
        check_writable("json", job.json)
    if job.out is not None:
        check_writable("out", job.out / "evaluation.json")

    from golddiff.sampling import check_settings

    for sampler in (job.sampler, job.oracle_sampler):
        check_settings(job.n, job.steps, sampler, job.seed, job.batch)
    return each


def _run_settings(job: EvaluateJob, store: ImageStore) -> tuple[RunSettings, RunSettings]:
    from golddiff.evaluation.runs import settings_of

    labels = parse_labels(job.labels, store, job.n)
    ours, theirs = (
        settings_of(job.n, job.steps, sampler, job.seed, labels, job.batch)
        for sampler in (job.sampler, job.oracle_sampler)
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
    job: EvaluateJob,
    store: ImageStore,
    reference: Run,
    settings: RunSettings,
    name: str,
    method: MethodSettings,
) -> Evaluation:
    from golddiff.evaluation.compare import compare

    denoiser = make_denoiser(name, store, method, job.seed)
    with progress_bar() as bar:
        task = bar.add_task(f"evaluating {name}", total=settings.n * settings.steps)
        return compare(
            denoiser, reference, settings, oracle_sampler=job.oracle_sampler,
            single_step=job.single_step, on_step=lambda images: bar.advance(task, images),
        )  # fmt: skip


def _tell(made: dict[str, Evaluation]) -> None:
    from rich.console import Console
    from rich.table import Table

    from golddiff.units import byte_size

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
    # Not cut to the width of a terminal that is not there.
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    (first, baseline), *others = made.items()
    for name, evaluation in others:
        difference = _difference(evaluation, baseline)
        mse, r2 = difference["mse"], difference["r2"]
        say(
            f"{name} less {first}, image by image: MSE {mse.mean:+.4f} ({mse.low:+.4f} to "
            f"{mse.high:+.4f}), r2 {r2.mean:+.3f} ({r2.low:+.3f} to {r2.high:+.3f})"
        )


def _difference(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    from golddiff.evaluation.bootstrap import bootstrap

    return {
        "mse": bootstrap(first.mse_per_image - second.mse_per_image),
        "r2": bootstrap(first.r2_per_image - second.r2_per_image),
    }


def _figures(
    job: EvaluateJob,
    store: ImageStore,
    oracle: Oracle,
    made: dict[str, Evaluation],
    settings: dict[str, MethodSettings],
) -> dict[str, Any]:
    from golddiff.experiments.context import store_checksum

    return {
        "golddiff": __version__,
        "kind": "evaluation",
        "store": {
            "description": describe(store), "checksum": store_checksum(store), **summary(store)
        },
        "oracle": {"path": str(oracle.path), "checksum": oracle.checksum},
        "methods": {
            name: {"settings": settings[name].given(), **evaluation.figures()}
            for name, evaluation in made.items()
        },
        "differences": [
            {"of": a, "less": b, **{k: v.figures() for k, v in _difference(x, y).items()}}
            for (a, x), (b, y) in combinations(made.items(), 2)
        ],
        "panels": [panel.figures() for panel in _panels(made)],
    }  # fmt: skip


def _panels(made: dict[str, Evaluation]) -> list[Panel]:
    from golddiff.figures.curves import Panel, Series

    titles = {"own": "both sides at their own states", "single": "one step, at the oracle's states"}
    panels = []
    for which, title in titles.items():
        curves = {
            name: e.figures()["per_step"][which]
            for name, e in made.items()
            if getattr(e, which) is not None
        }
        for metric, text in (("mse", "MSE"), ("r2", "r2")):
            lines = [
                Series(name, made[name].sigmas, curve[metric]) for name, curve in curves.items()
            ]
            if lines:
                panels.append(
                    Panel(
                        title, "noise level σ", f"{text} of the predicted x0", lines, "log",
                        "log" if metric == "mse" else "linear", falling=True,
                        floor=None if metric == "mse" else -1.0,
                    )
                )  # fmt: skip
    return panels


def _write_folder(
    out: Path,
    store: ImageStore,
    reference: Run,
    made: dict[str, Evaluation],
    figures: dict[str, Any],
) -> None:
    from golddiff.figures.curves import draw_panels
    from golddiff.figures.save import save

    write_json(out / "evaluation.json", figures)
    panels = _panels(made)
    if panels:
        save("out", draw_panels(panels), out / "curves.png")
    if len(store.shape) == 3:
        save("out", _pictures(reference, made, figures), out / "images.png")
    say(f"{out}: evaluation.json" + (", curves.png" if panels else "") + ", images.png")


def _pictures(reference: Run, made: dict[str, Evaluation], figures: dict[str, Any]) -> Any:
    from golddiff.figures.methods import Block, Made, draw_methods
    from golddiff.sampling import initial_noise

    settings = next(iter(made.values())).settings
    shown = min(SHOWN, settings.n)
    rows = {METHODS[name].title: Made(e.images[:shown], e.seconds) for name, e in made.items()}
    seconds = reference.seconds / (settings.n * settings.steps)
    rows["oracle"] = Made(reference.images[:shown], seconds)
    noise = initial_noise(shown, tuple(reference.images.shape[1:]), settings.seed)
    name = Path(figures["store"]["path"]).name
    return draw_methods([Block("", f"{name}, {settings.steps} steps", noise, rows)])
