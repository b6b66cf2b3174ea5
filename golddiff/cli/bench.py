"""``golddiff bench gpu``: times that can be trusted."""

from __future__ import annotations

import typer

from golddiff.cli.bench_gpu import gpu

bench = typer.Typer(help="Time denoising steps.", rich_markup_mode="rich")
bench.command()(gpu)


@bench.callback()
def _commands() -> None:
    """Time denoising steps."""
