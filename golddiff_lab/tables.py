"""One way to write a table: markdown that can be read in a terminal too."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], left: int = 1
) -> list[str]:
    """Its lines, every column as wide as its longest text.

    Args:
        header: of each column.
        rows: of texts; a row may be shorter than the header.
        left: how many of the first columns hold words; the others are numbers, on the right.
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
    """A number in a format, or a dash for None."""
    return "-" if value is None else format(value, form)
