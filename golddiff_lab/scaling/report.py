"""A scaling run as tables and plots for people, and as figures for programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from rich.table import Table

from golddiff.figures.curves import Panel, Scale, Series
from golddiff.system.units import byte_size
from golddiff_lab.fit import exponent, ratio
from golddiff_lab.scaling.job import WITHOUT_MASKS, ScalingJob
from golddiff_lab.scaling.run import Outcome
from golddiff_lab.scaling.stores import same_factor
from golddiff_lab.step.report import machine_figures
from golddiff_lab.tables import number, terminal_table

Cost = Callable[[dict[str, Any]], float | None]

NOTES = """\
ms        milliseconds per image and step, by number of images; masks were made before;
          ~: there was time for one call only
exponent  p of time ~ n^p, by least squares over all sizes (log against log)
ratio     time at the largest size over that at the smallest
cpu       the same exponent of the processor time of all threads, to which other work on the machine
          adds nothing
RMSE      to the full scan of the same estimator over the same images, at up to {queries} queries;
          -: the scan would take longer than --truth-seconds allows
weighed   training images that one query's support holds, at the largest size
run       a whole 10-step run, ms per image; -: it would take longer than ten times --seconds
queries   by turns points that a 10-step DDIM run of {passing} over the {n:,} images passes,
          and held-out images (new crops, flips and colours of images of the set) with noise"""


def times_table(job: ScalingJob, outcome: Outcome) -> Table:
    """A row for each noise level and method, then the whole run."""
    sizes = [store.n for store in outcome.stores]
    rows = []

    def add(first: str, method: str, of: str, measured: list[dict[str, Any]], *last: str) -> None:
        seconds = [m["seconds"] for m in measured]
        shown = [
            ("" if m.get("warm", True) else "~") + number(s and 1e3 * s, of)
            for m, s in zip(measured, seconds, strict=True)
        ]
        rows.append(
            [
                first if method == job.methods[0] else "", method, *shown,
                number(exponent(sizes, seconds), ".2f"), number(ratio(seconds), ".1f"),
                number(exponent(sizes, [m["processor_seconds"] for m in measured]), ".2f"), *last,
            ]
        )  # fmt: skip

    for i, sigma in enumerate(job.sigmas):
        for method in job.methods:
            levels = [outcome.cells[n, method]["levels"][i] for n in sizes]
            add(f"{sigma:.3g}", method, ".1f", levels, number(levels[-1]["images"], ",.0f"))
    for method in job.methods:
        add("run", method, ".0f", [outcome.cells[n, method]["run"] for n in sizes])
    heads = ("exponent", "ratio", "cpu exponent", "weighed")
    header = ["sigma", "method", *(f"ms, {n:,}" for n in sizes), *heads]
    return terminal_table(header, rows, left=(1,), bold=len(job.methods))


def errors_table(job: ScalingJob, outcome: Outcome) -> Table:
    """RMSE to the full scan at each noise level and size."""
    sizes = [store.n for store in outcome.stores]
    rows = [
        [
            f"{sigma:.3g}" if method == job.methods[0] else "",
            method,
            *(number(outcome.cells[n, method]["levels"][i]["rmse"], ".4f") for n in sizes),
        ]
        for i, sigma in enumerate(job.sigmas)
        for method in job.methods
    ]
    return terminal_table(["sigma", "method", *(f"RMSE, {n:,}" for n in sizes)], rows, left=(1,))


def memory_table(job: ScalingJob, outcome: Outcome) -> Table:
    """Peak resident memory of each cell's process, and what it read."""
    rows = []
    for method in job.methods:
        for store in outcome.stores:
            cell = outcome.cells[store.n, method]
            peak = cell["memory"]["peak"]
            sizes = (
                peak.get("anonymous"), peak.get("files"), cell["memory"]["high_water"],
                _mean(cell, "pixel_bytes"), _mean(cell, "disk_bytes"),
            )  # fmt: skip
            texts = ("-" if size is None else byte_size(int(size)) for size in sizes)
            rows.append([method, f"{store.n:,}", *texts])
    header = ["method", "images", "anonymous", "mapped files", "peak", "pixels a step", "from disk"]
    return terminal_table(header, rows, left=(0,))


def notes(job: ScalingJob, outcome: Outcome) -> list[str]:
    """What the tables hold, and what else has to be said."""
    lines = NOTES.format(
        queries=min(job.truth_queries, job.batch), passing=job.passing, n=outcome.stores[0].n
    ).splitlines()
    if not job.truth_queries:
        lines = [line for line in lines if not line.startswith(("RMSE", "          -: the scan"))]
    lines.append(
        "peak, anonymous and mapped files: the most resident of each in a process of its own, "
        f"with stores opened with memory_limit {byte_size(int(job.memory_limit))}; pixels a step: "
        "bytes of the images weighed for one query, mean over levels; from disk: of one query's "
        "step, as the system counts (nothing where the page cache has the files)"
    )
    if not WITHOUT_MASKS.issuperset(job.methods):
        same = same_factor(outcome.stores)
        factor = "one factor (masks) for all sizes" if same else "each size has its own factor"
        lines.append(f"{factor}, of {outcome.stores[-1].factors.images:,} images")
    fewer = [
        f"{method} at {n:,}"
        for (n, method), cell in sorted(outcome.cells.items())
        if any(level["queries"] < job.batch for level in cell["levels"])
    ]
    if fewer:
        lines.append(f"timed with fewer than {job.batch} queries at some levels: {fewer}")
    return lines


def figures(job: ScalingJob, outcome: Outcome) -> dict[str, Any]:
    """Everything measured, for --json."""
    sizes = [store.n for store in outcome.stores]

    def fit(costs: list[float | None]) -> dict[str, Any]:
        return {"costs": costs, "exponent": exponent(sizes, costs), "ratio": ratio(costs)}

    def fits(method: str) -> dict[str, Any]:
        cells = [outcome.cells[n, method] for n in sizes]
        levels = [
            {
                "sigma": sigma,
                **{
                    name: fit([cell["levels"][i][name] for cell in cells])
                    for name in ("seconds", "processor_seconds", "images", "pixel_bytes")
                },
            }
            for i, sigma in enumerate(job.sigmas)
        ]
        sums: list[float | None] = [sum(v["seconds"] for v in cell["levels"]) for cell in cells]
        runs = fit([cell["run"]["seconds"] for cell in cells])
        return {"levels": levels, "run": runs, "sum_of_levels": fit(sums)}

    return {
        "machine": machine_figures(outcome.machine),
        "threads": outcome.machine.threads,
        "job": {k: v for k, v in asdict(job).items() if k != "settings"},
        "settings": job.settings.given(),
        "sizes": sizes,
        "passing": job.passing,
        "stores": [
            {"path": str(s.path), "n": s.n, "source": s.manifest.source} for s in outcome.stores
        ],
        "references": outcome.references,
        "fits": {method: fits(method) for method in job.methods},
        "cells": list(outcome.cells.values()),
    }


def panels(job: ScalingJob, outcome: Outcome) -> list[Panel]:
    """Time of the run and of three of its steps, error, memory, against the number of images."""
    sizes = [store.n for store in outcome.stores]

    def panel(title: str, ylabel: str, cost: Cost, yscale: Scale = "log") -> Panel:
        lines = [
            Series(method, sizes, [cost(outcome.cells[n, method]) for n in sizes])
            for method in job.methods
        ]
        return Panel(title, "training images", ylabel, lines, "log", yscale)

    def step(i: int) -> Panel:
        title = f"one step, sigma {job.sigmas[i]:.3g}"
        return panel(title, "s per image", lambda cell: float(cell["levels"][i]["seconds"]))

    def resident(title: str, name: str) -> Panel:
        def cost(cell: dict[str, Any]) -> float | None:
            peak: dict[str, int] = cell["memory"]["peak"]
            return peak[name] / 1e6 if name in peak else None

        return panel(f"resident, {title}", "MB", cost, "linear")

    last = len(job.sigmas) - 1
    whole = panel(
        "all ten steps", "s per image", lambda cell: sum(v["seconds"] for v in cell["levels"])
    )
    made = [whole, *map(step, (0, last // 2, last))]
    made += [resident("anonymous", "anonymous"), resident("mapped files", "files")]
    if job.truth_queries:
        made.append(panel("error to the full scan", "RMSE, mean over levels", _error))
    return [p for p in made if any(v is not None for line in p.series for v in line.y)]


def _error(cell: dict[str, Any]) -> float | None:
    known = [level["rmse"] for level in cell["levels"]]
    # A mean over some of the levels would compare unlike things; 0 has no logarithm.
    return sum(known) / len(known) if None not in known and sum(known) > 0 else None


def _mean(cell: dict[str, Any], name: str) -> float | None:
    known = [level[name] for level in cell["levels"] if level[name] is not None]
    return sum(known) / len(known) if known else None
