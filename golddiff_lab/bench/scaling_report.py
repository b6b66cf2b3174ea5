"""A scaling run as tables and plots for people, and as figures for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from golddiff.figures.curves import Panel, Series
from golddiff.system.units import byte_size
from golddiff_lab.bench.scaling import Outcome
from golddiff_lab.bench.scaling_job import ScalingJob
from golddiff_lab.bench.step_report import machine_figures, machine_line
from golddiff_lab.cells import Result
from golddiff_lab.fit import exponent, ratio
from golddiff_lab.tables import markdown_table, number

NOTES = """\
ms        milliseconds per image and step, by number of images; masks were made before
exponent  p of time ~ n^p, by least squares over all sizes (log against log); cpu: of the processor
          time of all threads, to which other work on the machine adds nothing
ratio     time at the largest size over that at the smallest
RMSE      to the full scan of the same estimator over the same images, at up to {queries} queries;
          -: the scan would take longer than --truth-seconds allows
weighed   training images that one query's support holds, at the largest size
run       a whole 10-step run, ms per image
queries   by turns points that a 10-step DDIM run of {passing} over the {n:,} images passes,
          and held-out images (new crops, flips and colours of images of the set) with noise
peak      the most resident in a process of its own, anonymous and of mapped files apart, with
          stores opened with memory_limit {limit}
kept in   {folder}"""


def lines(job: ScalingJob, outcome: Outcome) -> list[str]:
    """The machine, the tables, and what they hold."""
    notes = NOTES.format(
        queries=min(job.truth_queries, job.batch), passing=job.passing, n=outcome.stores[0].n,
        limit=byte_size(int(job.memory_limit)), folder=outcome.folder,
    ).splitlines()  # fmt: skip
    if job.masked:
        notes.append(
            f"one factor (masks) for all sizes, of {outcome.stores[-1].factors.images:,} images"
        )
    return [
        machine_line(outcome.machine), *_levels_table(job, outcome), "",
        *_memory_table(job, outcome), *notes,
    ]  # fmt: skip


def _levels_table(job: ScalingJob, outcome: Outcome) -> list[str]:
    """A row for each noise level and method, then the whole run."""
    rows = []
    for i, sigma in enumerate([*job.sigmas, None]):
        for method in job.methods:
            cells = _of(outcome, method)
            measured = [cell["run"] if sigma is None else cell["levels"][i] for cell in cells]
            seconds, cpu = (
                _fit(outcome, [m[name] for m in measured])
                for name in ("seconds", "processor_seconds")
            )
            rows.append(
                [
                    ("run" if sigma is None else f"{sigma:.3g}")
                    if method == job.methods[0]
                    else "",
                    method,
                    *(f"{1e3 * cost:.1f}" for cost in seconds["costs"]),
                    *(number(seconds[name], ".2f") for name in ("exponent", "ratio")),
                    number(cpu["exponent"], ".2f"),
                    *(number(m.get("rmse"), ".4f") for m in measured),
                    number(measured[-1].get("images"), ",.0f"),
                ]
            )
    sizes = [f"{store.n:,}" for store in outcome.stores]
    header = [
        "sigma", "method", *(f"ms, {n}" for n in sizes), "exponent", "ratio", "cpu exponent",
        *(f"RMSE, {n}" for n in sizes), "weighed",
    ]  # fmt: skip
    return markdown_table(header, rows, left=2)


def _memory_table(job: ScalingJob, outcome: Outcome) -> list[str]:
    rows = [
        [method, f"{cell['n']:,}"]
        + [
            byte_size(cell["memory"][name]) if name in cell["memory"] else "-"
            for name in ("anonymous", "files", "peak")
        ]
        for method in job.methods
        for cell in _of(outcome, method)
    ]
    return markdown_table(["method", "images", "anonymous", "mapped files", "peak"], rows)


def figures(job: ScalingJob, outcome: Outcome) -> dict[str, Any]:
    """Everything measured, for --json."""

    def fits(method: str) -> dict[str, Any]:
        cells = _of(outcome, method)
        levels = [
            {
                "sigma": sigma,
                **{
                    name: _fit(outcome, [cell["levels"][i][name] for cell in cells])
                    for name in ("seconds", "processor_seconds", "images")
                },
            }
            for i, sigma in enumerate(job.sigmas)
        ]
        runs = _fit(outcome, [cell["run"]["seconds"] for cell in cells])
        return {
            "levels": levels, "run": runs, "sum_of_levels": _fit(outcome, list(map(_sum, cells))),
        }  # fmt: skip

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
        "fits": {method: fits(method) for method in job.methods},
        "cells": list(outcome.cells.values()),
        "panels": [panel.figures() for panel in panels(job, outcome)],
    }


def panels(job: ScalingJob, outcome: Outcome) -> list[Panel]:
    """Time of all steps and of three of them, memory and error against the number of images."""

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
    made = [
        panel("all ten steps", "s per image", _sum),
        *map(step, (0, last // 2, last)),
        panel("peak resident", "MB", lambda cell: float(cell["memory"]["peak"]) / 1e6),
        panel("error to the full scan", "RMSE, mean over levels", _error),
    ]
    return [p for p in made if any(v is not None for line in p.series for v in line.y)]


def _of(outcome: Outcome, method: str) -> list[Result]:
    return [outcome.cells[store.n, method] for store in outcome.stores]


def _fit(outcome: Outcome, costs: list[float | None]) -> dict[str, Any]:
    sizes = [store.n for store in outcome.stores]
    return {"costs": costs, "exponent": exponent(sizes, costs), "ratio": ratio(costs)}


def _sum(cell: Result) -> float:
    return float(sum(level["seconds"] for level in cell["levels"]))


def _error(cell: Result) -> float | None:
    known = [level["rmse"] for level in cell["levels"]]
    # A mean over some of the levels would compare unlike things; 0 has no logarithm.
    return sum(known) / len(known) if None not in known and sum(known) > 0 else None
