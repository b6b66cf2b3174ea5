"""Talking to the terminal: results on stdout, bars on stderr and only where someone watches."""

from __future__ import annotations

import gc
import json
from importlib import import_module
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from golddiff.system.files import written_whole
from golddiff.system.progress import progress_bar, waiting, watched

__all__ = ["progress_bar", "say", "show", "starting", "waiting", "watched", "write_json"]


def say(line: str) -> None:
    """One line of results, at once."""
    print(line, flush=True)


def starting() -> None:
    """Import what takes seconds, with a word for whoever waits."""
    gc.disable()  # what is imported stays: to look for garbage in it takes half a second
    with waiting("starting"):
        import_module("golddiff.sampling")
    gc.enable()


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
