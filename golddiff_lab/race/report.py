"""A race as tables for people and as figures for programs."""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from golddiff.system.units import byte_size, duration
from golddiff_lab.peers import PEERS
from golddiff_lab.race.job import StepJob
from golddiff_lab.race.machine import Machine
from golddiff_lab.race.step import Level, Outcome
from golddiff_lab.race.timing import Timing
from golddiff_lab.race.truth import describe, text_of
from golddiff_lab.race.work import floor_seconds

COLUMNS = """\
ms        milliseconds per image and step: the median step after one to warm up, over the batch
ratio     the time of {against} over this side's: above 1, this side is faster
RMSE      to the full scan of the same estimator ({truth})
          at {queries} of the queries; values lie in [-1, 1]
95 %      that of 95 in 100 of these queries is at most so much, each query by itself
Gop/s     operations counted from the method's formula, over the measured time
GB/s      bytes of stored images brought in, counted likewise, over the measured time
x floor   time over the least this machine could take: the larger of operations / its measured rate
          (additions for our kernels, matrix products for dense code) and bytes / its copy rate
same      largest difference from ours where the maths is the same: {same}"""


def machine_line(machine: Machine) -> str:
    """The machine's rates, in one line."""
    return (
        f"machine, {machine.threads} threads: float32 matrix {machine.float32_matrix / 1e9:.0f} "
        f"and bfloat16 matrix {machine.bfloat16_matrix / 1e9:.0f} Gop/s; float32 additions "
        f"{machine.float32_add / 1e9:.0f} G/s in the first cache, "
        f"{machine.float32_add_block / 1e9:.0f} G/s over 0.5 MB; copy {machine.copy / 1e9:.1f} GB/s"
    )


def levels_table(job: StepJob, outcome: Outcome) -> Table:
    """A row for each noise level and side, then the means over the levels."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("sigma", justify="right", no_wrap=True)
    table.add_column("side", no_wrap=True)
    for name in ("ms", "ratio", "RMSE", "95 %", "Gop/s", "GB/s", "x floor"):
        table.add_column(name, justify="right", no_wrap=True)
    checked = any(level.checks for level in outcome.levels)
    if checked:
        table.add_column("same", justify="right", no_wrap=True)
    for level in outcome.levels:
        for i, name in enumerate(level.timings):
            figures = side_figures(job, outcome, level, name)
            row = [f"{level.sigma:.3g}" if i == 0 else "", name, *_cells(figures)]
            table.add_row(*row, *([_cell(level.checks.get(name), ".1e")] if checked else []))
    for i, (name, mean) in enumerate(summary(job, outcome).items()):
        table.add_row(
            "mean" if i == 0 else "", name, _cell(1e3 * mean["seconds"], ".1f"),
            _cell(mean["ratio"], ".2f"), _cell(mean["rmse"], ".4f"), style="bold",
        )  # fmt: skip
    return table


def notes(job: StepJob, outcome: Outcome) -> list[str]:
    """What the table's columns are, and what else has to be said."""
    used = {text_of(r) for r in outcome.references.values()}
    text = COLUMNS.format(
        against=job.reference(),
        truth="; ".join(sorted(used)),
        queries=min(job.truth_queries, job.batch),
        same="; ".join(f"{name}: {what}" for name, what in outcome.checked.items()),
    ).splitlines()
    if not job.truth_queries:
        text = [line for line in text if not line.startswith(("RMSE", "          at ", "95 %"))]
    lines = text if outcome.checked else text[:-1]
    for name, images in outcome.parts.items():
        off = [level.timings[name].straightness or 1.0 for level in outcome.levels]
        lines.append(
            f"{name}: timed over {images // 4:,}, {images // 2:,} and {images:,} of "
            f"{outcome.store.n:,} images; its ms are on the straight line through the first and "
            f"the last, from which the middle lies off by {100 * (min(off) - 1):+.0f} to "
            f"{100 * (max(off) - 1):+.0f} %; no error, as it did not scan all images"
        )
    for name in outcome.memory:  # a side that does not warm up has no first step of its own
        extra = sum(
            max(0.0, level.timings[name].first - max(level.timings[name].measured))
            for level in outcome.levels
        )
        whose = PEERS[name].title + ": " if name in PEERS else ""
        lines.append(
            f"{name}: {whose}first steps took {duration(extra)} more over all levels (compiling, "
            "masks and whatever else is made once and kept)"
        )
    if any(name not in PEERS for name in outcome.memory):
        lines.append(
            "what our sides found kept with the store they only read: golddiff prepare makes "
            "masks, and so do the full scans of this run"
        )
    return lines


def memory_table(outcome: Outcome) -> Table:
    """Peak resident memory of each side's process."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("side", "import and open", "peak resident", "more"):
        table.add_column(name, justify="left" if name == "side" else "right", no_wrap=True)
    for name, (opened, peak) in outcome.memory.items():
        table.add_row(name, byte_size(opened), byte_size(peak), byte_size(peak - opened))
    return table


def summary(job: StepJob, outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Means over the levels; the ratio is that of the mean times."""
    seconds = {
        name: statistics.mean(level.timings[name].seconds for level in outcome.levels) / job.batch
        for name in outcome.memory
    }
    means: dict[str, dict[str, Any]] = {}
    for name in outcome.memory:
        errors = [e for level in outcome.levels if (e := level.errors[name]) is not None]
        means[name] = {
            "seconds": seconds[name],
            "ratio": seconds[job.reference()] / seconds[name],
            "rmse": statistics.mean(errors) if len(errors) == len(outcome.levels) else None,
        }
    return means


def side_figures(job: StepJob, outcome: Outcome, level: Level, name: str) -> dict[str, Any]:
    """One side at one level, as it stands in the JSON file; per image and step."""
    timing: Timing = level.timings[name]
    work, each = timing.work, timing.seconds / job.batch
    floor = None if work is None else floor_seconds(work, outcome.machine) / job.batch
    return {
        "seconds": each,
        "seconds_measured": [s / job.batch for s in timing.measured],
        "seconds_first": timing.first / job.batch,
        "extrapolated": timing.extrapolated,
        "straightness": timing.straightness,
        "ratio": level.timings[job.reference()].seconds / timing.seconds,
        "rmse": level.errors[name],
        "rmse_95": level.most[name],
        "operations": None if work is None else work.operations / job.batch,
        "bytes": None if work is None else work.bytes / job.batch,
        "bound_by": None if work is None else work.rate,
        "floor_seconds": floor,
        "times_floor": None if not floor else each / floor,
        "same_maths_difference": level.checks.get(name),
        "description": level.words[name],
    }


def figures(job: StepJob, outcome: Outcome) -> dict[str, Any]:
    """Everything measured, for --json."""
    return {
        "machine": vars(outcome.machine),
        "threads": outcome.threads,
        "batch": job.batch,
        "repeats": job.repeats,
        "seed": job.seed,
        "queries_from": job.queries_from,
        "truth_queries": min(job.truth_queries, job.batch),
        "settings": job.settings.given(),
        "against": job.reference(),
        "sides": {
            name: {
                "reference": describe(outcome.references[name]),
                "bytes_opened": opened,
                "bytes_peak": peak,
                "images_timed": outcome.parts.get(name, outcome.store.n),
                "same_maths": outcome.checked.get(name),
                **summary(job, outcome)[name],
            }
            for name, (opened, peak) in outcome.memory.items()
        },
        "levels": [
            {
                "sigma": level.sigma,
                "sides": {name: side_figures(job, outcome, level, name) for name in level.timings},
            }
            for level in outcome.levels
        ],
    }


def _cells(side: dict[str, Any]) -> list[str]:
    each = side["seconds"]
    rate = None if side["operations"] is None else side["operations"] / each / 1e9
    memory = None if side["bytes"] is None else side["bytes"] / each / 1e9
    return [
        ("~" if side["extrapolated"] else "") + _cell(1e3 * each, ".1f"),
        _cell(side["ratio"], ".2f"),
        _cell(side["rmse"], ".4f"),
        _cell(side["rmse_95"], ".4f"),
        _cell(rate, ".1f"),
        _cell(memory, ".2f"),
        _cell(side["times_floor"], ".1f"),
    ]


def _cell(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
