"""A scaling run as tables and plots for people, and as figures for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from rich.table import Table

from golddiff.figures.curves import Panel, Scale, Series
from golddiff.system.units import byte_size
from golddiff_lab.scaling.fit import exponent, ratio
from golddiff_lab.scaling.job import ScalingJob
from golddiff_lab.scaling.queries import SAID, passing
from golddiff_lab.scaling.run import Outcome
from golddiff_lab.scaling.stores import same_factor

Cost = Callable[[dict[str, Any]], float | None]

NOTES = """\
ms        milliseconds per image and step, by number of images; masks and plans were made before;
          ~: there was time for one call only
exponent  p of time ~ n^p, by least squares over all sizes (log against log)
ratio     time at the largest size over that at the smallest
cpu       the same exponent of the processor time of all threads, to which other work on the machine
          adds nothing
RMSE      to the full scan of the same estimator over the same images, at up to {queries} queries;
          -: the scan would take longer than --truth-seconds allows
weighed   training images that one query's support holds, at the largest size
run       a whole 10-step run, ms per image; -: it would take longer than ten times --seconds"""


def times_table(job: ScalingJob, outcome: Outcome) -> Table:
    """A row for each noise level and method, then the whole run."""
    sizes = [store.n for store in outcome.stores]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("sigma", justify="right", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for head in (*(f"ms, {n:,}" for n in sizes), "exponent", "ratio", "cpu exponent", "weighed"):
        table.add_column(head, justify="right", no_wrap=True)
    for i, sigma in enumerate(job.sigmas):
        for j, method in enumerate(job.methods):
            levels = [outcome.cells[n, method]["levels"][i] for n in sizes]
            growth = [
                *_growth(sizes, [level["seconds"] for level in levels]),
                _cell(exponent(sizes, [level["processor_seconds"] for level in levels]), ".2f"),
            ]
            table.add_row(
                f"{sigma:.3g}" if j == 0 else "",
                method,
                *(("" if v["warm"] else "~") + _cell(1e3 * v["seconds"], ".1f") for v in levels),
                *growth,
                _cell(levels[-1]["images"], ",.0f"),
            )
    for j, method in enumerate(job.methods):
        runs = [outcome.cells[n, method]["run"]["seconds"] for n in sizes]
        cells = [_cell(None if s is None else 1e3 * s, ".0f") for s in runs]
        busy = [outcome.cells[n, method]["run"]["processor_seconds"] for n in sizes]
        growth = [*_growth(sizes, runs), _cell(exponent(sizes, busy), ".2f")]
        table.add_row("run" if j == 0 else "", method, *cells, *growth, style="bold")
    return table


def errors_table(job: ScalingJob, outcome: Outcome) -> Table:
    """RMSE to the full scan at each noise level and size."""
    sizes = [store.n for store in outcome.stores]
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("sigma", justify="right", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for n in sizes:
        table.add_column(f"RMSE, {n:,}", justify="right", no_wrap=True)
    for i, sigma in enumerate(job.sigmas):
        for j, method in enumerate(job.methods):
            errors = [outcome.cells[n, method]["levels"][i]["rmse"] for n in sizes]
            cells = [_cell(error, ".4f") for error in errors]
            table.add_row(f"{sigma:.3g}" if j == 0 else "", method, *cells)
    return table


def memory_table(job: ScalingJob, outcome: Outcome) -> Table:
    """Peak resident memory of each cell's process, and what it read."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method", no_wrap=True)
    for head in ("images", "anonymous", "mapped files", "peak", "pixels a step", "from disk"):
        table.add_column(head, justify="right", no_wrap=True)
    for method in job.methods:
        for store in outcome.stores:
            cell = outcome.cells[store.n, method]
            peak = cell["memory"]["peak"]
            table.add_row(
                method, f"{store.n:,}", _size(peak.get("anonymous")), _size(peak.get("files")),
                _size(cell["memory"]["high_water"]), _size(_mean(cell, "pixel_bytes")),
                _size(_mean(cell, "disk_bytes")),
            )  # fmt: skip
    return table


def notes(job: ScalingJob, outcome: Outcome) -> list[str]:
    """What the tables hold, and what else has to be said."""
    lines = NOTES.format(queries=min(job.truth_queries, job.batch)).splitlines()
    if not job.truth_queries:
        lines = [line for line in lines if not line.startswith(("RMSE", "          -: the scan"))]
    lines.append(SAID.format(passing=passing(job.methods), n=outcome.stores[0].n))
    lines.append(
        "peak, anonymous and mapped files: the most resident of each in a process of its own, "
        f"with stores opened with memory_limit {byte_size(int(job.memory_limit))}; pixels a step: "
        "bytes of the images weighed for one query, mean over levels; from disk: of one query's "
        "step, as the system counts (nothing where the page cache has the files)"
    )
    images = outcome.stores[-1].manifest.files.get("factor.safetensors")
    if images is not None:
        factor = "one factor (masks) for all sizes" if same_factor(outcome.stores) else (
            "each size has a factor (masks) of its own"
        )  # fmt: skip
        lines.append(f"{factor}, of {outcome.stores[-1].factors.images:,} images")
    fewer = sorted(
        {
            f"{method} at {n:,}"
            for (n, method), cell in outcome.cells.items()
            if any(level["queries"] < job.batch for level in cell["levels"])
        }
    )
    if fewer:
        lines.append(
            f"timed with fewer than {job.batch} queries at some levels: " + "; ".join(fewer)
        )
    return lines


def figures(job: ScalingJob, outcome: Outcome) -> dict[str, Any]:
    """Everything measured, for --json."""
    sizes = [store.n for store in outcome.stores]
    return {
        "machine": vars(outcome.machine),
        "threads": outcome.threads,
        "job": {k: v for k, v in asdict(job).items() if k != "settings"},
        "settings": job.settings.given(),
        "sizes": sizes,
        "queries": SAID.format(passing=passing(job.methods), n=sizes[0]),
        "stores": [
            {"path": str(s.path), "n": s.n, "source": s.manifest.source} for s in outcome.stores
        ],
        "references": outcome.references,
        "fits": {method: _fits(job, outcome, sizes, method) for method in job.methods},
        "cells": list(outcome.cells.values()),
    }


def _fits(job: ScalingJob, outcome: Outcome, sizes: list[int], method: str) -> dict[str, Any]:
    levels = []
    for i, sigma in enumerate(job.sigmas):
        of_sizes = [outcome.cells[n, method]["levels"][i] for n in sizes]
        levels.append(
            {
                "sigma": sigma,
                **{
                    name: _fit(sizes, [level[name] for level in of_sizes])
                    for name in ("seconds", "processor_seconds", "images", "pixel_bytes")
                },
            }
        )
    runs = [outcome.cells[n, method]["run"]["seconds"] for n in sizes]
    sums = [sum(v["seconds"] for v in outcome.cells[n, method]["levels"]) for n in sizes]
    return {"levels": levels, "run": _fit(sizes, runs), "sum_of_levels": _fit(sizes, sums)}


def _fit(sizes: list[int], costs: list[float | None]) -> dict[str, Any]:
    return {"costs": costs, "exponent": exponent(sizes, costs), "ratio": ratio(costs)}


def panels(job: ScalingJob, outcome: Outcome) -> list[Panel]:
    """Time of the run and of three of its steps, error, memory, against the number of images."""
    sizes = [store.n for store in outcome.stores]

    def panel(title: str, ylabel: str, cost: Cost, yscale: Scale = "log") -> Panel:
        lines = [
            Series(method, sizes, [cost(outcome.cells[n, method]) for n in sizes])
            for method in job.methods
        ]
        return Panel(title, "training images", ylabel, lines, "log", yscale)

    last = len(job.sigmas) - 1
    made = [
        panel(
            "all ten steps" if i is None else f"one step, sigma {job.sigmas[i]:.3g}",
            "s per image",
            _seconds(i),
        )
        for i in (None, 0, last // 2, last)
    ]
    made.append(panel("resident, anonymous", "MB", _peak("anonymous"), "linear"))
    made.append(panel("resident, mapped files", "MB", _peak("files"), "linear"))
    if job.truth_queries:
        made.append(panel("error to the full scan", "RMSE, mean over levels", _error))
    return [p for p in made if any(v is not None for line in p.series for v in line.y)]


def _seconds(level: int | None) -> Cost:
    if level is None:
        return lambda cell: sum(v["seconds"] for v in cell["levels"])
    return lambda cell: float(cell["levels"][level]["seconds"])


def _peak(name: str) -> Cost:
    return lambda cell: (
        cell["memory"]["peak"][name] / 1e6 if name in cell["memory"]["peak"] else None
    )


def _error(cell: dict[str, Any]) -> float | None:
    known = [level["rmse"] for level in cell["levels"]]
    # A mean over some of the levels would compare unlike things; 0 has no logarithm.
    return sum(known) / len(known) if None not in known and sum(known) > 0 else None


def _mean(cell: dict[str, Any], name: str) -> float | None:
    known = [level[name] for level in cell["levels"] if level[name] is not None]
    return sum(known) / len(known) if known else None


def _growth(sizes: list[int], costs: list[float | None]) -> Iterator[str]:
    yield _cell(exponent(sizes, costs), ".2f")
    yield _cell(ratio(costs), ".1f")


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _size(value: float | None) -> str:
    return "-" if value is None else byte_size(int(value))
