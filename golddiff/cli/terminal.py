"""Talking to the terminal: results on stdout, bars on stderr and only where someone watches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from golddiff.system.files import written_whole
from golddiff.system.progress import progress_bar, watched

__all__ = ["progress_bar", "say", "show", "waiting", "watched", "write_json"]


def say(line: str) -> None:
    """One line of results, at once."""
    print(line, flush=True)


@contextmanager
def waiting(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for what takes seconds; what is called with how much is done, and of how much.

    Where nobody says, it only moves: there is no share that would be true.
    """
    with progress_bar() as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def show(table: Table) -> None:
    """A table of results, at its full width where the output is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    console.print(table)


def write_json(path: Path, figures: dict[str, Any]) -> None:
    """Write figures to a JSON file, whole or not at all."""
    with written_whole("json", path) as temporary:
        temporary.write_text(json.dumps(figures, indent=1, allow_nan=False) + "\n", "utf-8")
