"""Talking to the terminal: results on stdout, bars on stderr and only where someone watches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from golddiff.system.files import written_whole


def say(line: str) -> None:
    """One line of results, at once."""
    print(line, flush=True)


def show(table: Table) -> None:
    """A table of results, at its full width where the output is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def watched() -> bool:
    """Whether a person sees stderr: progress bars make sense."""
    return sys.stderr.isatty()


def progress_bar() -> Progress:
    """A bar with the time left, which vanishes when it is done."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not watched(),
    )


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write figures to a JSON file, whole or not at all.

    Raises:
        ArgumentError: the file cannot be written.
    """
    with written_whole("json", path) as temporary:
        temporary.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n", "utf-8")
