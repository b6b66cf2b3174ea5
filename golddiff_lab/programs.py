"""Modules that are programs of their own: ``python -m golddiff_lab.NAME``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import typer

from golddiff.cli import run_app


def program(name: str, main: Callable[..., None], arguments: Sequence[str] | None = None) -> int:
    """Run a module's command line; its exit status. Bad input ends as that of ``golddiff`` does.

    Args:
        name: of the module.
        main: what it does, with options as typer has them.
        arguments: of the command line; None: this process's.
    """
    app = typer.Typer(add_completion=False)
    app.command()(main)
    given = sys.argv[1:] if arguments is None else arguments
    return run_app(app, given, f"python -m golddiff_lab.{name}")
