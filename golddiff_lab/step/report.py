"""A race as tables for people and as figures for programs."""

from __future__ import annotations

import statistics
from typing import Any

from rich.table import Table

from golddiff.system.units import byte_size, duration
from golddiff_lab.machine import Rates
from golddiff_lab.peers import PEERS
from golddiff_lab.step.job import StepJob
from golddiff_lab.step.run import Level, Outcome
from golddiff_lab.tables import number, terminal_table
from golddiff_lab.truth import describe, text_of

COLUMNS = """\
ms        milliseconds per image and step: the median step after one to warm up, over the batch
ratio     the time of {against} over this side's: above 1, this side is faster
RMSE      to the full scan of the same estimator ({truth})
          at {queries} of the queries; values lie in [-1, 1]
95 %      that of 95 in 100 of these queries is at most so much, each query by itself
GFLOP     that time's worth of this machine's float32 matrix products: comparable between machines
same      largest difference from ours where the maths is the same: {same}"""


def machine_line(rates: Rates) -> str:
    """The machine's rates, in one line."""
    return (
        f"machine, {rates.threads} threads: float32 matrix products {rates.matrix / 1e9:.0f} "
        f"GFLOP/s; copy {rates.copy / 1e9:.1f} GB/s"
    )


def levels_table(job: StepJob, outcome: Outcome) -> Table:
    """A row for each noise level and side, then the means over the levels."""
    checked = ["same"] if outcome.checked else []
    rows = []
    for level in outcome.levels:
        for i, name in enumerate(level.timings):
            side = side_figures(job, outcome, level, name)
            rows.append(
                [
                    "" if i else f"{level.sigma:.3g}",
                    name,
                    ("" if side["straightness"] is None else "~") + f"{1e3 * side['seconds']:.1f}",
                    f"{side['ratio']:.2f}",
                    number(side["rmse"], ".4f"),
                    number(side["rmse_95"], ".4f"),
                    f"{side['gflop']:.2f}",
                    *(number(level.checks.get(name), ".1e") for _ in checked),
                ]
            )
    means = summary(job, outcome)
    rows += [
        [
            "" if i else "mean", name, f"{1e3 * mean['seconds']:.1f}", f"{mean['ratio']:.2f}",
            number(mean["rmse"], ".4f"), "", f"{mean['gflop']:.2f}",
        ]
        for i, (name, mean) in enumerate(means.items())
    ]  # fmt: skip
    header = ["sigma", "side", "ms", "ratio", "RMSE", "95 %", "GFLOP", *checked]
    return terminal_table(header, rows, left=(1,), bold=len(means))


def notes(job: StepJob, outcome: Outcome) -> list[str]:
    """What the table's columns are, and what else has to be said."""
    lines = COLUMNS.format(
        against=job.reference(),
        truth="; ".join(sorted({text_of(r) for r in outcome.references.values()})),
        queries=min(job.truth_queries, job.batch),
        same="; ".join(f"{name}: {what}" for name, what in outcome.checked.items()),
    ).splitlines()
    left_out = [] if job.truth_queries else ["RMSE", "          at ", "95 %"]
    left_out += [] if outcome.checked else ["same"]
    lines = [line for line in lines if not line.startswith(tuple(left_out))]
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
            "what our sides found kept with the store they only read; the full scans of this run "
            "make masks"
        )
    return lines


def memory_table(outcome: Outcome) -> Table:
    """Peak resident memory of each side's process."""
    rows = [
        [name, byte_size(opened), byte_size(peak), byte_size(peak - opened)]
        for name, (opened, peak) in outcome.memory.items()
    ]
    return terminal_table(["side", "import and open", "peak resident", "more"], rows, left=(0,))


def summary(job: StepJob, outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Means over the levels; the ratio is that of the mean times."""
    seconds = {
        name: statistics.mean(level.timings[name].seconds for level in outcome.levels) / job.batch
        for name in outcome.memory
    }
    means: dict[str, dict[str, Any]] = {}
    for name, mean in seconds.items():
        errors = [level.errors[name] for level in outcome.levels if name in level.errors]
        means[name] = {
            "seconds": mean,
            "ratio": seconds[job.reference()] / mean,
            "rmse": statistics.mean(errors) if len(errors) == len(outcome.levels) else None,
            "gflop": mean * outcome.machine.matrix / 1e9,
        }
    return means


def side_figures(job: StepJob, outcome: Outcome, level: Level, name: str) -> dict[str, Any]:
    """One side at one level, as it stands in the JSON file; per image and step."""
    timing = level.timings[name]
    each = timing.seconds / job.batch
    return {
        "seconds": each,
        "seconds_measured": [s / job.batch for s in timing.measured],
        "seconds_first": timing.first / job.batch,
        "extrapolated": timing.straightness is not None,
        "straightness": timing.straightness,
        "ratio": level.timings[job.reference()].seconds / timing.seconds,
        "gflop": each * outcome.machine.matrix / 1e9,
        "rmse": level.errors.get(name),
        "rmse_95": level.most.get(name),
        "same_maths_difference": level.checks.get(name),
        "description": level.words[name],
    }


def figures(job: StepJob, outcome: Outcome) -> dict[str, Any]:
    """Everything measured, for --json."""
    means = summary(job, outcome)
    return {
        "machine": machine_figures(outcome.machine),
        "threads": outcome.machine.threads,
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
                **means[name],
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


def machine_figures(rates: Rates) -> dict[str, float]:
    """The machine's rates for JSON."""
    return {"threads": rates.threads, "float32_matrix": rates.matrix, "copy": rates.copy}
