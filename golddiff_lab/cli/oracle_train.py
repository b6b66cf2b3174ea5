"""``golddiff oracle train``: train a network to compare with."""

from __future__ import annotations

import contextlib
import shlex
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from golddiff.cli.command import command
from golddiff.cli.terminal import say, watched
from golddiff.store.cache import SourceOptions, cached_store
from golddiff.system.errors import ArgumentError
from golddiff.system.units import duration
from golddiff_lab.training.settings import TrainSettings

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore
    from golddiff_lab.training.state import Progress as Trained

TOLD_EVERY = 100


@dataclass(frozen=True)
class TrainOptions:
    """The options of ``golddiff oracle train``."""

    out: Annotated[Path, typer.Option(help="The folder of the run; one that is there goes on.")]
    data: Annotated[
        str, typer.Option(help="A store, or any source of images that golddiff sample takes.")
    ] = "digits"
    settings: TrainSettings = field(default_factory=TrainSettings)
    threads: Annotated[
        int | None, typer.Option(help="Processor threads.", rich_help_panel="Running")
    ] = None


@command
def train(options: TrainOptions) -> None:
    """Train an attention-free DDPM U-Net, or go on with a run that was stopped.

    Averaged weights are written to the folder every two minutes. On the processor the minutes are
    those of its own work: a stopped process or a busy machine makes it last longer, not learn less.

    For example:

      golddiff oracle train --data cifar.store --out cifar-oracle --minutes 90

      golddiff oracle train --data digits --out digits-oracle --steps 500 --channels 32
    """
    from golddiff.system.parallel import use_threads

    out, threads, settings = options.out, options.threads, options.settings
    if threads is not None:
        if threads < 1:
            raise ArgumentError(f"threads: got {threads}, expected 1 or more")
        use_threads(threads)
    if settings.minutes is None and settings.steps is None:
        settings = replace(settings, minutes=60.0)
    settings.check()
    line = command_of(options.data, out, settings, threads)
    with _stop_asked() as stopped:
        trained = _train(_store(options.data), out, settings, stopped, line)
        _draw(trained, out)
        say(
            f"{out}: {trained.step:,} steps in {duration(trained.elapsed)}"
            + (f", loss {trained.history[-1][2]:.4f}" if trained.history else "")
        )
        if stopped.is_set():
            say("stopped; the same command goes on from here")
            raise KeyboardInterrupt


def command_of(data: str, out: Path, settings: TrainSettings, threads: int | None) -> str:
    """The command line of a run: every setting that is not the default."""
    words = ["golddiff", "oracle", "train", "--data", data, "--out", str(out)]
    plain = TrainSettings().as_dict()
    given: dict[str, Any] = {n: v for n, v in settings.as_dict().items() if v != plain[n]}
    given["multipliers"] = ",".join(map(str, settings.multipliers))
    given["minutes"] = settings.minutes
    for name, value in {**given, "channels": settings.channels, "threads": threads}.items():
        if value is True:
            words.append(f"--{name.replace('_', '-')}")
        elif value is not None:
            number = f"{value:g}" if isinstance(value, float) else str(value)
            words += [f"--{name.replace('_', '-')}", number]
    return shlex.join(words)


def _train(
    store: ImageStore, out: Path, settings: TrainSettings, stopped: threading.Event, command: str
) -> Trained:
    from golddiff_lab.training.train import Step
    from golddiff_lab.training.train import train as run

    mean = 1.0
    columns = (
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=Console(stderr=True), disable=not watched())
    with bar:
        task = bar.add_task("training", total=1.0)

        def on_step(step: Step) -> None:
            nonlocal mean
            mean += max(0.02, 1 / step.number) * (step.loss - mean)
            told = f"step {step.number:,}  loss {mean:.4f}"
            bar.update(task, completed=step.share, description=told)
            if not watched() and (step.number == 1 or step.number % TOLD_EVERY == 0):
                say(f"{told}  {duration(step.elapsed)}")

        return run(store, out, settings, on_step=on_step, stop=stopped.is_set, command=command)


def _draw(trained: Trained, out: Path) -> None:
    from golddiff.figures.pictures import save
    from golddiff_lab.figures.losses import draw_losses

    points = [(step, loss) for step, _, loss, _ in trained.history]
    save("out", draw_losses(points, f"{out.name}: {trained.step:,} steps"), out / "loss.png")


@contextlib.contextmanager
def _stop_asked() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or polite kill sets; the second one ends the process."""
    event = threading.Event()

    def ask(number: int, frame: object) -> None:
        event.set()
        restore()

    # Signals can be taken over by the main thread only; elsewhere nobody presses Ctrl-C.
    taken: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        taken = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in taken.items():
            signal.signal(number, handler)

    try:
        yield event
    finally:
        restore()


def _store(data: str) -> ImageStore:
    from golddiff.store.images import ImageStore
    from golddiff.store.manifest import NAME

    if (Path(data) / NAME).is_file():
        return ImageStore.open(data)
    return cached_store(data, SourceOptions(), say=say, progress=watched())
