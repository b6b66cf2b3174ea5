"""The figures of a campaign as markdown, and their place in ``docs/gpu.md``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from golddiff.system.errors import ArgumentError
from golddiff.system.files import written_whole
from golddiff_lab.gpu.rows import BATCHES, ROWS
from golddiff_lab.tables import markdown_table, number

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOT_MEASURED = "not measured"


def lines(record: dict[str, Any]) -> list[str]:
    """The two tables; every row stands there, measured or not.

    Args:
        record: what ``golddiff_lab.gpu_campaign`` writes as ``gpu.json``.
    """
    return [*_about(record), "", *_differences(record.get("differences", ())), "", *_times(record)]


def summary(result: dict[str, Any]) -> str:
    """One result in a few words."""
    if "seconds" in result:
        return f"batch {result['batch']}, {1e3 * result['seconds']:.3g} ms a step"
    verdict = "" if result["holds"] else ", MORE than allowed"
    return f"{number(result['largest'], '.1e')}{verdict}"


def update(page: Path, record: dict[str, Any]) -> None:
    """Put the tables between the two marks of a page, and the figures as JSON beside it.

    Raises:
        ArgumentError: the page cannot be read or written, or has no such marks.
    """
    texts = {
        page.with_suffix(".json"): json.dumps(record, indent=1, allow_nan=False) + "\n",
        page: between(page, lines(record)),
    }
    for path, text in texts.items():
        with written_whole("page", path) as temporary:
            temporary.write_text(text, "utf-8")


def between(page: Path, inside: Sequence[str]) -> str:
    """The text of a page with other lines between its marks.

    Raises:
        ArgumentError: it cannot be read, or has no such marks.
    """
    text = page.read_text("utf-8") if page.is_file() else ""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ArgumentError(f"page: {page} has no lines {BEGIN} and {END}")
    return "\n".join([before + BEGIN, *inside, END + after])


def _about(record: dict[str, Any]) -> list[str]:
    if not record.get("device"):
        return ["No GPU was measured."]
    trial = ["**A dry run over a few small images: no result.**", ""] if record["dry_run"] else []
    rates = record["rates"]
    return [
        *trial,
        f"Device: {record['device']}, torch {record['torch']}; float32 products "
        f"{rates['matrix'] / 1e12:.2f} TFLOP/s, copy {rates['copy'] / 1e12:.3f} TB/s. Times are "
        f"means over sigma {', '.join(f'{sigma:.3g}' for sigma in record['levels'])}.",
    ]


def _differences(found: Sequence[dict[str, Any]]) -> list[str]:
    if not found:
        return [f"Agreement with the processor: {NOT_MEASURED}."]
    rows = [
        [row["path"], number(row["largest"], ".1e"), number(row["rms"], ".1e"), row["where"],
         "yes" if row["holds"] else "**no**"]
        for row in found
    ]  # fmt: skip
    header = ["path", "largest difference", "rms", "at", f"within {found[0]['allowed']:g}"]
    return markdown_table(header, rows)


def _times(record: dict[str, Any]) -> list[str]:
    known = {(row["row"], row["batch"]): row for row in record.get("rows", ())}
    rows = []
    for row in ROWS:
        for batch in BATCHES:
            title = row.title if batch == BATCHES[0] else ""
            paper = _milliseconds(row.paper_seconds, "g")
            found = known.get((row.title, batch))
            rows.append([title, str(batch), *(_measured(found) if found else [NOT_MEASURED]),
                         *([] if found else [""] * 5), paper])  # fmt: skip
    header = [
        "row", "batch", "ms a step", "ms an image", "times its floor", "peak GB",
        "release, ms a step", "times faster", "the paper, ms a step",
    ]  # fmt: skip
    return markdown_table(header, rows)


def _measured(row: dict[str, Any]) -> list[str]:
    seconds, least, peer = row["seconds"], row["floor_seconds"], row.get("peer_seconds")
    return [
        _milliseconds(seconds),
        _milliseconds(seconds / row["batch"]),
        "-" if least is None else f"{seconds / least:.1f}",
        f"{row['peak_bytes'] / 1e9:.2f}",
        row.get("peer") or _milliseconds(peer),
        "-" if peer is None else f"{peer / seconds:.1f}",
    ]


def _milliseconds(seconds: float | None, form: str = ".3g") -> str:
    return number(None if seconds is None else 1e3 * seconds, form)
