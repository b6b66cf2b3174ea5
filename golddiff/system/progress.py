"""Progress bars on stderr that show the remaining time and disappear when done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from importlib.util import find_spec

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.text import Text

SURE = 0.05  # share of the work after which the remaining time is shown


def progress_bar(shown: bool = True) -> Progress:
    """A bar with the remaining time; hidden unless ``shown`` and in a terminal or notebook."""
    console = Console(stderr=True)
    in_notebook = console.is_jupyter and find_spec("ipywidgets") is not None
    hidden = not (shown and (console.is_terminal or in_notebook))
    console.quiet = hidden  # rich before 14.3 writes an empty line for a hidden bar
    return Progress(
        TextColumn("{task.description}", markup=False),  # file names may contain brackets
        BarColumn(),
        TaskProgressColumn(),
        _TimeLeft(),
        console=console,
        transient=True,
        disable=hidden,
    )


@contextmanager
def waiting(what: str, shown: bool = True) -> Iterator[Callable[[int, int], None]]:
    """Show a bar; yield a function that updates it with (done, total).

    Until the function is called, the bar pulses without a percentage.
    """
    with progress_bar(shown) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


class _TimeLeft(ProgressColumn):
    """Remaining time at the mean speed so far; rich's own column drops the slow first step."""

    def render(self, task: Task) -> Text:
        """'0:01:30', or dashes while it would be a guess and when only uncounted work is left."""
        share = task.completed / task.total if task.total else 0.0
        left = "-:--:--"
        if SURE <= share < 1 and task.elapsed is not None:
            left = str(timedelta(seconds=round(task.elapsed * (1 / share - 1))))
        return Text(left, style="progress.remaining")
