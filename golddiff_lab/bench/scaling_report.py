"""Report a scaling run as tables, plots and JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from golddiff.figures.curves import Panel, Series
from golddiff.system.markdown import markdown_table, number
from golddiff.system.units import byte_size
from golddiff_lab.bench.scaling import Outcome
from golddiff_lab.bench.scaling_job import ScalingJob
from golddiff_lab.bench.step_report import machine_figures, machine_line
from golddiff_lab.cells import Result
from golddiff_lab.fit import exponent, ratio

NOTES = """\
ms        milliseconds per image and step, by number of images; masks were computed before
exponent  p of time ~ n^p, a least-squares fit of log time against log n over all sizes; cpu: from
          the CPU time of all threads, which excludes other programs
ratio     time at the largest size divided by time at the smallest
RMSE      to the full scan of the same estimator over the same images, at up to {queries} queries;
          -: the scan would take longer than --truth-seconds
weighed   training images in one query's support, at the largest size
run       a whole 10-step run, ms per image
queries   alternately states of a 10-step DDIM run of {passing} over the {n:,} images, and noisy
          held-out images (new crops, flips and colours of training images)
peak      peak resident memory of each process; stores are opened with memory_limit {limit}
kept in   {folder}"""


def lines(job: ScalingJob, outcome: Outcome) -> list[str]:
    """The report: machine, tables, and notes that explain them."""
    notes = NOTES.format(
        queries=min(job.truth_queries, job.batch), passing=job.passing, n=outcome.stores[0].n,
        limit=byte_size(int(job.memory_limit)), folder=outcome.folder,
    ).splitlines()  # fmt: skip
    if job.masked:
        notes.append(
            f"one factor (masks) for all sizes, of {outcome.stores[-1].factor().images:,} images"
        )
    return [
        machine_line(outcome.machine), *_levels_table(job, outcome), "",
        *_memory_table(job, outcome), *notes,
    ]  # fmt: skip


def _levels_table(job: ScalingJob, outcome: Outcome) -> list[str]:
    """One row per noise level and method, then rows of the whole run."""
    rows, sizes = [], [store.n for store in outcome.stores]
    for i, sigma in enumerate([*job.sigmas, None]):
        for method in job.methods:
            cells = _of(outcome, method)
            measured = [cell["run"] if sigma is None else cell["levels"][i] for cell in cells]
            seconds, cpu = ([m[k] for m in measured] for k in ("seconds", "processor_seconds"))
            rows.append(
                [
                    ("run" if sigma is None else f"{sigma:.3g}")
                    if method == job.methods[0]
                    else "",
                    method,
                    *(f"{1e3 * cost:.1f}" for cost in seconds),
                    number(exponent(sizes, seconds), ".2f"),
                    number(ratio(seconds), ".2f"),
                    number(exponent(sizes, cpu), ".2f"),
                    *(number(m.get("rmse"), ".4f") for m in measured),
                    number(measured[-1].get("images"), ",.0f"),
                ]
            )
    header = [
        "sigma", "method", *(f"ms, {n:,}" for n in sizes), "exponent", "ratio", "cpu exponent",
        *(f"RMSE, {n:,}" for n in sizes), "weighed",
    ]  # fmt: skip
    return markdown_table(header, rows, left=2)


def _memory_table(job: ScalingJob, outcome: Outcome) -> list[str]:
    rows = [
        [method, f"{cell['n']:,}", byte_size(cell["memory"]["peak"])]
        for method in job.methods
        for cell in _of(outcome, method)
    ]
    return markdown_table(["method", "images", "peak"], rows)


def figures(job: ScalingJob, outcome: Outcome) -> dict[str, Any]:
    """Everything measured, for --json."""
    hidden = ("settings", "json", "plot")
    return {
        "machine": machine_figures(outcome.machine),
        "threads": outcome.machine.threads,
        "job": {k: v for k, v in asdict(job).items() if k not in hidden},
        "settings": job.settings.given(),
        "sizes": [store.n for store in outcome.stores],
        "passing": job.passing,
        "stores": [
            {"path": str(s.path), "n": s.n, "source": s.manifest.source} for s in outcome.stores
        ],
        "references": outcome.references,
        "cells": list(outcome.cells.values()),
        "panels": [asdict(panel) for panel in panels(job, outcome)],
    }


def panels(job: ScalingJob, outcome: Outcome) -> list[Panel]:
    """Plots against the number of images: time of all and of three steps, memory, and error."""

    def panel(title: str, ylabel: str, cost: Callable[[Result], float | None]) -> Panel:
        series = [
            Series(method, [s.n for s in outcome.stores], list(map(cost, _of(outcome, method))))
            for method in job.methods
        ]
        return Panel(title, "training images", ylabel, series, "log", "log")

    def step(i: int) -> Panel:
        title = f"one step, sigma {job.sigmas[i]:.3g}"
        return panel(title, "s per image", lambda cell: float(cell["levels"][i]["seconds"]))

    last = len(job.sigmas) - 1
    all_panels = [
        panel("a whole 10-step run", "s per image", lambda cell: float(cell["run"]["seconds"])),
        *map(step, (0, last // 2, last)),
        panel("peak resident", "MB", lambda cell: float(cell["memory"]["peak"]) / 1e6),
        panel("error to the full scan", "RMSE, mean over levels", _error),
    ]
    return [p for p in all_panels if any(v is not None for line in p.series for v in line.y)]


def _of(outcome: Outcome, method: str) -> list[Result]:
    return [outcome.cells[store.n, method] for store in outcome.stores]


def _error(cell: Result) -> float | None:
    errors = [level["rmse"] for level in cell["levels"]]
    # Means over different sets of levels cannot be compared; 0 has no logarithm.
    return sum(errors) / len(errors) if None not in errors and sum(errors) > 0 else None
