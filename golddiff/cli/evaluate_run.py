"""What ``golddiff evaluate`` does: check, run the oracle, run each method, tell and draw."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.cli.evaluate_figures import difference, figures, write_folder
from golddiff.cli.parse import parse_labels
from golddiff.cli.terminal import progress_bar, say, write_json
from golddiff.errors import ArgumentError
from golddiff.registry import METHODS, MethodSettings, check_method, create
from golddiff.system.files import check_writable
from golddiff.system.units import duration

if TYPE_CHECKING:
    from golddiff.evaluation.compare import Evaluation
    from golddiff.evaluation.references import Oracle
    from golddiff.evaluation.runs import Run, RunSettings
    from golddiff.store.images import ImageStore


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
    from golddiff.store.images import ImageStore

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
    told = figures(store, oracle, made, settings)
    if job.json is not None:
        write_json(job.json, told)
    if job.out is not None:
        write_folder(job.out, store, reference, made, told)


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

    denoiser = create(name, store, method, job.seed)
    with progress_bar() as bar:
        task = bar.add_task(f"evaluating {name}", total=settings.n * settings.steps)
        return compare(
            denoiser, reference, settings, oracle_sampler=job.oracle_sampler,
            single_step=job.single_step, on_step=lambda images: bar.advance(task, images),
        )  # fmt: skip


def _tell(made: dict[str, Evaluation]) -> None:
    from rich.console import Console
    from rich.table import Table

    from golddiff.system.units import byte_size

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
        apart = difference(evaluation, baseline)
        mse, r2 = apart["mse"], apart["r2"]
        say(
            f"{name} less {first}, image by image: MSE {mse.mean:+.4f} ({mse.low:+.4f} to "
            f"{mse.high:+.4f}), r2 {r2.mean:+.3f} ({r2.low:+.3f} to {r2.high:+.3f})"
        )
