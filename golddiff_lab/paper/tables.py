"""Tables of likeness to networks: one table per column of the paper's, one row per method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from golddiff.evaluation.interval import Interval, mean_interval
from golddiff.figures.curves import Panel, Series
from golddiff.system.markdown import markdown_table
from golddiff.system.units import counted, shape_text
from golddiff_lab.cells import Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.likeness import (
    NOT_RUN,
    Column,
    Here,
    Row,
    column_here,
    likeness,
    row_store,
    row_title,
)
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.paper import paper_value

HEADINGS = {"MSE": "MSE", "r2": "r2", "Time": "s a step", "Memory": "peak GB"}
SAMPLERS = {"ddim": "DDIM", "heun": "Heun"}
DASH = "–"

NOTE = (
    "MSE and r2 compare images in [0, 1] with the oracle's from the same noise; they are means "
    "over the images, with 95% intervals. Times are seconds per image and step without "
    "one-time work (masks, compiled kernels), with CPU seconds in brackets, which exclude other "
    "programs. The paper's times and memory are for its GPU, ours for this machine. Our memory is "
    "the peak of the process, including mapped images, with its growth during setup and run in "
    "brackets."
)


@dataclass(frozen=True)
class LikenessTable:
    """One table of the paper, or one of ours.

    Attributes:
        label: LaTeX label in the paper; None for our own tables.
        columns: columns of the paper's table; each becomes a table on our page.
        rows: the methods.
        metrics: keys of ``HEADINGS``.
        differences: pairs of rows whose paired difference is printed below each table.
        notes: paragraphs above the tables.
    """

    label: str | None
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    metrics: tuple[str, ...] = ("MSE", "r2")
    differences: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    def run(self, context: Context) -> Page:
        """The page of the table."""
        page = Page([NOTE, *(line for note in self.notes for line in ("", note))])
        # All before the first is computed, as a damaged network raises.
        columns = [(column, column_here(context, column)) for column in self.columns]
        for column, here in columns:
            # There is nothing to show of a column that the paper does not have either.
            if isinstance(here, str) and here != NOT_RUN and column.group is None:
                continue
            page.lines += ["", f"### {column.title}", ""]
            if isinstance(here, str):
                page.lines += self._missing(column, here)
            else:
                self._add(page, context, here)
        return page

    def _add(self, page: Page, context: Context, here: Here) -> None:
        """Add a column whose data and oracle are available: table, rows and curves."""
        column = here.column
        results = {row.title: likeness(context, here, row) for row in self.rows}
        titles = [row_title(context, here, row) for row in self.rows]
        origins = ("ours",) if self.label is None else ("paper", "ours")
        header = ["Method", *(f"{HEADINGS[m]}, {o}" for m in self.metrics for o in origins)]
        texts = [
            [title, *self._cells(column, row.title, results[row.title])]
            for title, row in zip(titles, self.rows, strict=True)
        ]
        page.lines += [
            _about(here, list(results.values())),
            "",
            *markdown_table(header, texts),
        ]
        for a, b in self.differences:
            page.lines += ["", _difference(a, b, results)]
        page.rows += [
            {
                "column": column.title,
                "row": title,
                "method": row.method,
                "images": row_store(context, here, row).n,
                "paper": self._paper(column, row.title),
                **{k: v for k, v in results[row.title].items() if k != "pictures"},
            }
            for title, row in zip(titles, self.rows, strict=True)
        ]
        page.panels += _curves(column.title, dict(zip(titles, results.values(), strict=True)))

    def _missing(self, column: Column, reason: str) -> list[str]:
        """A table of the paper's numbers, with the reason why ours are missing."""
        header = ["Method", *(f"{HEADINGS[metric]}, paper" for metric in self.metrics), "ours"]
        texts = [
            [row.title, *(text or DASH for text in self._paper(column, row.title).values()), reason]
            for row in self.rows
        ]
        return markdown_table(header, texts)

    def _paper(self, column: Column, row: str) -> dict[str, str | None]:
        """The paper's numbers for a method, by metric."""
        return {m: paper_value(self.label, column.group, row, m) for m in self.metrics}

    def _cells(self, column: Column, row: str, result: Result) -> list[str]:
        ours = {
            "MSE": _interval(result["mse"], 4),
            "r2": _interval(result["r2"], 3) + _undefined(result["r2_undefined"]),
            "Time": _seconds(result),
            "Memory": _memory(**result["memory"]),
        }
        cells = []
        for metric, text in self._paper(column, row).items():
            cells += [ours[metric]] if self.label is None else [text or DASH, ours[metric]]
        return cells


def _about(here: Here, results: list[Result]) -> str:
    """One line that describes the comparison: store, oracle and settings."""
    # Rows that were computed by other calls may have other batches and threads.
    batches, threads = (sorted({r[name] for r in results}) for name in ("batch", "threads"))
    store, settings = here.store, here.settings
    oracle_sampler = here.column.oracle_sampler or settings.sampler
    sampler = SAMPLERS[settings.sampler]
    if oracle_sampler != settings.sampler:
        sampler = f"{sampler} (the oracle's: {SAMPLERS[oracle_sampler]})"
    return (
        f"{store.n:,} images, {shape_text(store.shape)} "
        f"(checksum {store.manifest.images_checksum[:12]}); "
        f"oracle `{here.oracle.path.name}` (checksum {here.oracle.checksum[:12]}); "
        f"{settings.n} images"
        f"{' of all classes in turn' if settings.labels else ''}, {settings.steps} {sampler} "
        f"steps, seed {settings.seed}, batches of {' or '.join(map(str, batches))}, "
        f"{' or '.join(counted(count, 'thread') for count in threads)}."
    )


def _curves(title: str, results: dict[str, Result]) -> list[Panel]:
    """Plot r2 of each step's prediction by method, if both sides use the same sampler."""
    lines = [
        Series(name, result["per_step"]["sigma"], result["per_step"]["own"]["r2"])
        for name, result in results.items()
        if result["per_step"]["own"] is not None
    ]
    if not lines:
        return []
    xlabel, ylabel = "noise level σ", "r2 of the predicted x0"
    return [Panel(title, xlabel, ylabel, lines, xscale="log", falling=True, floor=-1.0)]


def _seconds(result: Result) -> str:
    """Wall seconds per image and step, followed by CPU seconds in brackets."""
    seconds = result["seconds"]
    wall, processor = (
        seconds[name] for name in ("per_image_and_step", "processor_per_image_and_step")
    )
    return f"{wall:.2g} ({processor:.2g})"


def _memory(bytes: int, kind: str, before: int) -> str:
    grown = f" (+{max(0, bytes - before) / 1e9:.2f})" if before else ""
    return f"{bytes / 1e9:.2f}{grown}{' on a GPU' if kind == 'allocator' else ''}"


def _interval(figures: dict[str, Any], digits: int) -> str:
    if figures["mean"] is None:
        return "undefined"
    value = Interval(**figures)
    return f"{value.mean:.{digits}f} ({value.bounds(f'.{digits}f')})"


def _undefined(count: int) -> str:
    return f"; {count} undefined" if count else ""


def _difference(a: str, b: str, results: dict[str, Result]) -> str:
    first, second = (results[row]["per_image"] for row in (a, b))
    mse, r2 = (
        mean_interval(np.subtract(*np.array([first[m], second[m]], np.float64)))
        for m in ("mse", "r2")
    )
    return f"{a} less {b}, image by image: MSE {_signed(mse, 4)}, r2 {_signed(r2, 3)}."


def _signed(value: Interval, digits: int) -> str:
    if value.count == 0:
        return "undefined"
    return f"{value.mean:+.{digits}f} ({value.bounds(f'+.{digits}f')})"
