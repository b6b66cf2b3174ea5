"""Progress bars: on stderr, with the time left, gone when they are done."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


def watched() -> bool:
    """Whether a person sees stderr: progress bars make sense."""
    return sys.stderr.isatty()


def progress_bar(shown: bool = True) -> Progress:
    """A bar with the time left, on a terminal or in a notebook, where it is to be shown."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}", markup=False),  # names of files are shown as they are
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not (shown and (console.is_terminal or console.is_jupyter)),
    )
