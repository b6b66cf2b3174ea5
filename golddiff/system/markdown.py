"""Markdown tables, aligned so that they are readable in a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    """The lines of a table, with each column as wide as its longest text.

    A row may be shorter than the header. The first ``left`` columns are left-aligned.
    """
    full = [[*row, *[""] * (len(header) - len(row))] for row in [header, *rows]]
    widths = [max(3, *map(len, column)) for column in zip(*full, strict=True)]

    def line(row: Sequence[str]) -> str:
        texts = (
            text.ljust(width) if i < left else text.rjust(width)
            for i, (text, width) in enumerate(zip(row, widths, strict=True))
        )
        return f"| {' | '.join(texts)} |"

    rule = ["-" * w if i < left else "-" * (w - 1) + ":" for i, w in enumerate(widths)]
    return [line(full[0]), line(rule), *map(line, full[1:])]


def number(value: float | None, form: str) -> str:
    """Format a number; None becomes a dash."""
    return "-" if value is None else format(value, form)
