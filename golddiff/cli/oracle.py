"""``golddiff oracle``: train, inspect and pack networks to compare with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from golddiff.cache import SourceOptions, cached_store
from golddiff.cli.terminal import say, watched
from golddiff.errors import ArgumentError
from golddiff.units import duration

if TYPE_CHECKING:
    from golddiff.store import ImageStore

oracle = typer.Typer(
    name="oracle",
    help="Train a network to compare with, show what a checkpoint is, pack weights.",
    no_args_is_help=True,
)


@oracle.command()
def train(
    out: Annotated[Path, typer.Option(help="The folder of the run; one that is there goes on.")],
    data: Annotated[
        str, typer.Option(help="A store, or any source of images as golddiff sample takes.")
    ] = "digits",
    minutes: Annotated[
        float | None, typer.Option(help="Time to train; default 60, or none with --steps.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps to train.")] = None,
    channels: Annotated[int, typer.Option(help="Width of the first level.")] = 64,
    multipliers: Annotated[
        str, typer.Option(help="Width of each level, as multiples of --channels.")
    ] = "1,2,2",
    blocks: Annotated[int, typer.Option(help="Residual blocks a level.")] = 2,
    dropout: Annotated[float, typer.Option(help="Share of features dropped.")] = 0.0,
    conditional: Annotated[
        bool, typer.Option("--conditional", help="Learn the classes too.")
    ] = False,
    label_dropout: Annotated[
        float, typer.Option(help="With --conditional: share of labels left out.")
    ] = 0.2,
    batch: Annotated[int, typer.Option(help="Images a step.")] = 64,
    learning_rate: Annotated[float, typer.Option(help="Peak of Adam's.")] = 2e-4,
    flip: Annotated[bool, typer.Option("--flip", help="Mirror half of the images.")] = False,
    seed: Annotated[int, typer.Option(help="Of the weights and of what is drawn.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    precision: Annotated[
        str | None,
        typer.Option(help="bfloat16 or float32; default: bfloat16 where the device has it."),
    ] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads.")] = None,
) -> None:
    """Train an attention-free DDPM U-Net, or go on with a run that was stopped.

    For example:

      golddiff oracle train --data cifar.store --out cifar-oracle --minutes 90

      golddiff oracle train --data digits --out digits-oracle --steps 500 --channels 32
    """
    import torch

    from golddiff.oracles.settings import TrainSettings
    from golddiff.oracles.train import Step
    from golddiff.oracles.train import train as run

    if threads is not None:
        if threads < 1:
            raise ArgumentError(f"threads: got {threads}, expected 1 or more")
        torch.set_num_threads(threads)
    settings = TrainSettings(
        channels=channels, multipliers=parse_multipliers(multipliers), blocks=blocks,
        dropout=dropout, conditional=conditional, label_dropout=label_dropout,
        minutes=60.0 if minutes is None and steps is None else minutes, steps=steps, batch=batch,
        learning_rate=learning_rate, flip=flip, seed=seed, precision=precision, device=device,
    )  # fmt: skip
    store = _store(data)
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    mean = 1.0
    with Progress(*columns, console=Console(stderr=True), disable=not watched()) as bar:
        task = bar.add_task("training", total=1.0)

        def on_step(step: Step) -> None:
            nonlocal mean
            mean = step.loss if step.number == 1 else mean + 0.05 * (step.loss - mean)
            told = f"step {step.number:,}  loss {mean:.4f}"
            bar.update(task, completed=step.share, description=told)
            if not watched() and step.number % 100 == 0:
                say(f"{told}  {duration(step.elapsed)}")

        progress = run(store, out, settings, on_step=on_step)
    say(f"{out}: {progress.step:,} steps in {duration(progress.elapsed)}")


def parse_multipliers(text: str) -> tuple[int, ...]:
    """Widths of the levels: whole numbers with commas between.

    Raises:
        ArgumentError: something else.
    """
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"multipliers: got {text!r}, expected whole numbers with commas between (1,2,2)"
        ) from None


def _store(data: str) -> ImageStore:
    from golddiff.manifest import NAME
    from golddiff.store import ImageStore

    if (Path(data) / NAME).is_file():
        return ImageStore.open(data)
    return cached_store(data, SourceOptions(), say=say, progress=watched())
