"""Progress bars: on stderr, with the time left, gone when they are done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

SURE = 0.05  # of the work, before which nothing is said of the rest


def progress_bar(shown: bool = True) -> Progress:
    """A bar with the time left, on a terminal or in a notebook, where it is to be shown."""
    console = Console(stderr=True)
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    return Progress(
        TextColumn("{task.description}", markup=False),  # names of files are shown as they are
        BarColumn(),
        TaskProgressColumn(),
        _TimeLeft(),
        console=console,
        transient=True,
        disable=not (shown and (console.is_terminal or in_notebook)),
    )


@contextmanager
def waiting(what: str, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """A bar for what takes seconds; what is called with how much is done, and of how much.

    Where nobody says, it only moves: there is no share that would be true.
    """
    with progress_bar(shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _TimeLeft(ProgressColumn):
    """At the speed since the start: rich's own forgets the first step, often the slowest."""

    def render(self, task: Task) -> Text:
        """'0:01:30', or dashes where it would be a guess."""
        share = task.completed / task.total if task.total else 0.0
        left = "-:--:--"
        if share >= SURE and task.elapsed is not None:
            left = str(timedelta(seconds=round(task.elapsed * (1 / share - 1))))
        return Text(left, style="progress.remaining")
