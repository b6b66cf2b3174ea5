"""Report a race as tables and JSON."""

from __future__ import annotations

import statistics
from typing import Any

from golddiff.estimators.describe import describe
from golddiff.system.markdown import markdown_table, number
from golddiff.system.units import byte_size, duration
from golddiff_lab.bench.step import Outcome
from golddiff_lab.bench.step_job import StepJob
from golddiff_lab.machine import Rates
from golddiff_lab.peers import PEERS
from golddiff_lab.truth import text_of

COLUMNS = """\
ms        milliseconds per image and step: the median step after a warm-up, divided by the batch
ratio     the time of {against} divided by this side's; above 1, this side is faster
RMSE      to the full scan of the same estimator ({truth})
          at {queries} of the queries; values lie in [-1, 1]
95 %      the 95th percentile of these queries' RMSEs
GFLOP     float32 matrix-product operations this machine does in that time, to compare machines"""


def machine_line(rates: Rates) -> str:
    """The machine's rates as one line of text."""
    return (
        f"machine, {rates.threads} threads: float32 matrix products {rates.matrix / 1e9:.0f} "
        f"GFLOP/s; copy {rates.copy / 1e9:.1f} GB/s"
    )


def machine_figures(rates: Rates) -> dict[str, float]:
    """The machine's rates for JSON."""
    return {"threads": rates.threads, "float32_matrix": rates.matrix, "copy": rates.copy}


def figures(job: StepJob, outcome: Outcome) -> dict[str, Any]:
    """Everything measured, for --json."""
    rows = _with_ratios(job, outcome)
    return {
        "machine": machine_figures(outcome.machine),
        "threads": outcome.machine.threads,
        "batch": job.batch,
        "repeats": job.repeats,
        "seed": job.seed,
        "queries_from": job.queries_from,
        "truth_queries": job.compared,
        "settings": job.settings.given(),
        "against": job.reference,
        "sides": {
            name: {
                "reference": describe(outcome.references[name]),
                "bytes_opened": memory["opened"],
                "bytes_peak": memory["peak"],
                **_mean([row for row in rows if row["side"] == name]),
            }
            for name, memory in outcome.memory.items()
        },
        "levels": [
            {"sigma": sigma, "sides": {row["side"]: row for row in rows if row["sigma"] == sigma}}
            for sigma in job.sigmas
        ],
    }


def levels_table(figures: dict[str, Any]) -> list[str]:
    """One row per noise level and side, then the means over the levels."""
    levels = [(f"{level['sigma']:.3g}", level["sides"]) for level in figures["levels"]]
    rows = [
        [
            "" if i else first,
            name,
            f"{1e3 * side['seconds']:.1f}",
            f"{side['ratio']:.2f}",
            number(side["rmse"], ".4f"),
            number(side.get("rmse_95"), ".4f"),
            f"{side['gflop']:.2f}",
        ]
        for first, sides in [*levels, ("mean", figures["sides"])]
        for i, (name, side) in enumerate(sides.items())
    ]
    header = ["sigma", "side", "ms", "ratio", "RMSE", "95 %", "GFLOP"]
    return markdown_table(header, rows, left=2)


def notes(job: StepJob, outcome: Outcome) -> list[str]:
    """Explanations of the table's columns, and remarks on the race."""
    lines = COLUMNS.format(
        against=job.reference,
        truth="; ".join(sorted({text_of(r) for r in outcome.references.values()})),
        queries=job.compared,
    ).splitlines()
    if job.compared == 0:
        lines = [line for line in lines if not line.startswith(("RMSE", "          at ", "95 %"))]
    for name in outcome.memory:
        extra = sum(
            max(0.0, row["seconds_first"] - max(row["seconds_measured"])) * job.batch
            for row in outcome.rows
            if row["side"] == name
        )
        title = PEERS[name].title + ": " if name in PEERS else ""
        lines.append(
            f"{name}: {title}warm-up steps took {duration(extra)} longer in total (compiling, "
            "masks and other cached results)"
        )
    if any(name not in PEERS for name in outcome.memory):
        lines.append(
            "our sides read cached results of the store, such as masks, which the full scans of "
            "this run compute"
        )
    return lines


def memory_table(outcome: Outcome) -> list[str]:
    """Peak resident memory of each side's process."""
    rows = [
        [name, *map(byte_size, (m["opened"], m["peak"], m["peak"] - m["opened"]))]
        for name, m in outcome.memory.items()
    ]
    return markdown_table(["side", "import and open", "peak resident", "more"], rows)


def _with_ratios(job: StepJob, outcome: Outcome) -> list[dict[str, Any]]:
    """The rows with times relative to the reference side and to the machine's rate."""
    base = {r["sigma"]: r["seconds"] for r in outcome.rows if r["side"] == job.reference}
    rate = outcome.machine.matrix / 1e9
    return [
        {
            **row,
            "against_seconds": base[row["sigma"]],
            "ratio": base[row["sigma"]] / row["seconds"],
            "gflop": row["seconds"] * rate,
        }
        for row in outcome.rows
    ]


def _mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the levels; ``ratio`` is the ratio of the mean times."""
    seconds, base, gflop = (
        statistics.mean(row[name] for row in rows)
        for name in ("seconds", "against_seconds", "gflop")
    )
    errors = [row["rmse"] for row in rows]
    return {
        "seconds": seconds,
        "ratio": base / seconds,
        "rmse": None if None in errors else statistics.mean(errors),
        "gflop": gflop,
    }
