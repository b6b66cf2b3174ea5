"""Command lines of the modules that are run as ``python -m golddiff_lab.NAME``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from golddiff.cli import run_app


def program(name: str, main: Callable[..., None], arguments: Sequence[str] | None = None) -> int:
    """Run a module's command line and return its exit status; errors are shown as by ``golddiff``.

    ``main`` is a function with typer options; ``arguments`` None are those of this process.
    """
    app = typer.Typer(add_completion=False)
    app.command()(main)
    arguments = sys.argv[1:] if arguments is None else arguments
    return run_app(app, arguments, f"python -m golddiff_lab.{name}")
