"""Tables for people: in a terminal, and in markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table


def terminal_table(
    header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Iterable[int] = (), bold: int = 0
) -> Table:
    """A table without lines.

    Args:
        header: of each column.
        rows: of texts; a row may be shorter than the header.
        left: places of the columns that hold words; the others are numbers, on the right.
        bold: how many of the last rows are bold.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for i, name in enumerate(header):
        table.add_column(name, justify="left" if i in left else "right", no_wrap=True)
    lines = list(rows)
    for i, row in enumerate(lines):
        table.add_row(*row, style="bold" if i >= len(lines) - bold else None)
    return table


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Its lines; the first column is left-aligned, the others right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return ["| " + " | ".join(line) + " |" for line in [header, rule, *rows]]


def number(value: float | None, form: str) -> str:
    """A number in a format, or a dash for None."""
    return "-" if value is None else format(value, form)


def whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between.

    Raises:
        ArgumentError: something else.
    """
    from golddiff.cli.parse import parse_numbers
    from golddiff.system.errors import ArgumentError

    numbers = parse_numbers(name, text) or ()
    if any(n != int(n) for n in numbers):
        raise ArgumentError(f"{name}: got {text!r}, expected whole numbers with commas between")
    return tuple(int(n) for n in numbers)
