"""``golddiff oracle train | info | export | patch-sizes``: networks to compare with."""

from __future__ import annotations

import contextlib
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from golddiff.cli import INTERRUPTED
from golddiff.cli.command import ADVANCED, argument, command, option
from golddiff.cli.options import JsonPath, Seed, Threads, check_apart
from golddiff.cli.terminal import progress_bar, say, starting, waiting, write_json
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.system.errors import ArgumentError, CheckpointError
from golddiff.system.files import check_writable
from golddiff.system.units import byte_size, duration, shape_text
from golddiff_lab.training.settings import TrainSettings

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore
    from golddiff_lab.training.run import Run

PRINT_EVERY = 100  # steps, if stderr is not a terminal
DTYPES = ("float16", "float32")

oracle = typer.Typer(
    name="oracle",
    help="Train a network to compare with, describe a checkpoint, pack its weights, or measure the "
    "patch sizes it uses.",
    no_args_is_help=True,
)


@dataclass(frozen=True)
class TrainOptions:
    """The options of ``golddiff oracle train``."""

    out: Path = option("Folder of the run; a run already in it continues.")
    data: str = option("A store, or any source of images that golddiff sample reads.", "digits")
    settings: TrainSettings = field(default_factory=TrainSettings)
    threads: Threads = None


@oracle.command()
@command
def train(options: TrainOptions) -> None:
    """Train an attention-free DDPM U-Net, or continue a stopped run.

    The averaged weights are saved to the folder every two minutes. On a CPU, --minutes is processor
    time: a pause or a busy machine makes training last longer, but not learn less.

    For example:

      golddiff oracle train --data cifar.store --out cifar-oracle --minutes 90
      golddiff oracle train --data digits --out digits-oracle --steps 500 --channels 32
    """
    starting()
    from golddiff.system.parallel import use_threads

    out, threads, settings = options.out, options.threads, options.settings
    use_threads(threads)
    settings.check()
    check_apart("out", out, options.data)
    line = shlex.join(["golddiff", *sys.argv[1:]])
    store = cached_store(options.data, SourceOptions(skip_bad=True), say=say, progress=True)
    with _stop_event() as stopped:
        run = _train(store, out, settings, stopped, line)
        loss = ""
        if run.history:
            _draw(run, out)
            loss = f", loss {run.history[-1][2]:.4f}"
        say(f"{out}: {run.step:,} steps in {duration(run.elapsed)}{loss}")
        if stopped.is_set():
            say("stopped; run the same command again to continue")
            sys.exit(INTERRUPTED)


def _train(
    store: ImageStore, out: Path, settings: TrainSettings, stopped: threading.Event, command: str
) -> Run:
    from golddiff_lab.training.train import train as train_network

    count, mean = 0, 0.0  # of this process only: a continued run has earlier steps
    with progress_bar() as bar:
        task = bar.add_task("training", total=1.0)

        def on_step(run: Run, loss: float) -> None:
            nonlocal count, mean
            count += 1
            mean += max(0.02, 1 / count) * (loss - mean)
            line = f"step {run.step:,}  loss {mean:.4f}"
            bar.update(task, completed=run.share, description=line)
            if not sys.stderr.isatty() and (run.step == 1 or run.step % PRINT_EVERY == 0):
                say(f"{line}  {duration(run.elapsed)}")

        run = train_network(
            store, out, settings, on_step=on_step, stop=stopped.is_set, command=command
        )
    if not count and not stopped.is_set():
        say("nothing is left to train; for more, raise --steps or --minutes")
    return run


def _draw(run: Run, out: Path) -> None:
    """Plot the losses, and at each step the mean over the last tenth of the steps so far."""
    from golddiff.figures.curves import Panel, Series, draw_panels
    from golddiff.system.pictures import save

    steps, losses = ([row[i] for row in run.history] for i in (0, 2))
    means = [fmean(losses[i - i // 10 : i + 1]) for i in range(len(losses))]
    lines = [Series("loss", steps, losses, dashed=True), Series("mean of a tenth", steps, means)]
    title = f"{out.name}: {run.step:,} steps"
    panel = Panel(title, "step", "mean squared error", lines, "log", "log")
    save("out", draw_panels([panel]), out / "loss.png")


@contextlib.contextmanager
def _stop_event() -> Iterator[threading.Event]:
    """An event that the first SIGINT or SIGTERM sets; the second one ends the process."""
    event = threading.Event()

    def stop(number: int, frame: object) -> None:
        event.set()
        restore()

    # Only the main thread can install signal handlers.
    previous: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in previous.items():
            signal.signal(number, handler)

    try:
        yield event
    finally:
        restore()


@oracle.command()
def info(
    path: Annotated[Path, typer.Argument(help="A checkpoint that load_oracle reads.")],
    resolution: Annotated[
        int | None, typer.Option(help="Side of the images, if the file does not record it.")
    ] = None,
    json: JsonPath = None,
) -> None:
    """Describe a checkpoint: the network, its images and how it was trained.

    For example:

      golddiff oracle info mnist-oracle/
    """
    starting()
    description = _description(path, resolution)
    shape, classes = tuple(description["shape"]), description["num_classes"]
    say(f"{path}: {description['kind']}")
    say(
        f"images: {shape_text(shape)}, "
        + (f"{classes:,} classes" if classes else "unconditional")
        + f"; noise levels {description['sigma_min']:.3g} to {description['sigma_max']:.4g}"
    )
    size = "" if description["bytes"] is None else f", {byte_size(description['bytes'])} on disk"
    say(f"weights: {description['parameters']:,}{size}")
    if (network := description["network"]) is not None:
        say("network: " + ", ".join(f"{name} {value}" for name, value in network.items()))
    training = description["training"]
    if "steps" in training and "minutes" in training:
        say(f"trained: {training['steps']:,} steps in {training['minutes']:g} minutes")
        if "images_seen" in training:
            say(f"images seen, including by its starting weights: {training['images_seen']:,}")
        if training.get("loss"):
            say("loss: " + _losses(training["loss"]))
        if training.get("command"):
            say(f"command: {training['command']}")
    write_json(json, description)


@oracle.command()
def export(
    path: Annotated[Path, typer.Argument(help="A training run's folder, or a weights file.")],
    out: Annotated[Path, typer.Argument(help="The .safetensors file to write.")],
    dtype: Annotated[str, typer.Option(help="Weights as float16 or float32.")] = "float16",
) -> None:
    """Pack a trained network into one file, at half the size.

    The file also holds the settings, training command and loss curve; load_oracle reads it.

    For example:

      golddiff oracle export cifar-oracle cifar.safetensors
    """
    check_writable("out", out, (".safetensors",))
    if dtype not in DTYPES:
        raise ArgumentError(f"dtype: got {dtype!r}, expected {' or '.join(DTYPES)}")

    import torch

    from golddiff.oracles.files import find_weights, read_weights
    from golddiff_lab.training.writing import write_weights

    check_apart("out", out, find_weights(path))
    network, description = read_weights(path)
    write_weights(out, network, description, getattr(torch, dtype))
    say(f"{out}: {byte_size(out.stat().st_size)}, {dtype}")


@dataclass(frozen=True)
class PatchSizesOptions:
    """The options of ``golddiff oracle patch-sizes``."""

    network: Path = argument("A checkpoint that load_oracle reads.")
    store: str = argument("A store of the network's training images, or a source of them.")
    sizes: tuple[int, ...] | None = option(
        "Odd sizes to try (3,5,7); default: 3 to the image size.", None
    )
    boundary: str = option("Kamb: zeros, circular or none.", "zeros", panel=ADVANCED)
    samples: int = option("Number of runs of the network; the authors use 20.", 8)
    images: int = option("Number of random training images; the authors use 5000.", 1000)
    seed: Seed = 0
    threads: Threads = None
    json: JsonPath = None


@oracle.command(name="patch-sizes")
@command
def patch_sizes(options: PatchSizesOptions) -> None:
    """Measure a network's patch size at each noise level, for Kamb's denoiser.

    Chooses the sizes whose predictions have the largest cosine similarity with the network's, as
    Kamb and Ganguli do. The --patch-size option of other commands reads the JSON file.

    For example:

      golddiff oracle patch-sizes mnist.safetensors mnist.store --json sizes.json
      golddiff sample --store mnist.store --method kamb --patch-size sizes.json --n 4
    """
    starting()
    from golddiff.oracles.load import load_oracle
    from golddiff.system.parallel import use_threads
    from golddiff_lab.patch_sizes import Settings, calibrated

    use_threads(options.threads)

    settings = Settings(
        options.sizes,
        options.boundary, options.samples, options.images, options.seed,
    )  # fmt: skip
    network = load_oracle(options.network)
    if network.conditional and network.no_class is None:
        raise ArgumentError("network: takes a class for every image, expected one without classes")
    store = cached_store(options.store, SourceOptions(skip_bad=True), say=say, progress=True)
    with waiting("measuring patch sizes") as watch:
        result = calibrated(network, store, settings, watch)
    for (sigma, size), chosen in zip(result.pairs, result.chosen, strict=True):
        say(f"sigma {sigma:8.3f}: {size:2} x {size} (samples {min(chosen)} to {max(chosen)})")
    figures = {
        "kind": "patch-sizes", "network": str(options.network), "store": options.store,
        **asdict(settings), "patch_sizes": result.pairs, "sizes": result.sizes,
        "chosen": result.chosen.tolist(), "cosines": result.cosines.mean(axis=2).tolist(),
    }  # fmt: skip
    write_json(options.json, figures)


def _description(path: Path, resolution: int | None) -> dict[str, Any]:
    """A description of a checkpoint for JSON; loads the network, so that damage is detected."""
    from golddiff.oracles.files import find_weights, read_weights
    from golddiff.oracles.load import load_oracle
    from golddiff.oracles.unet import TABLE, UNet

    loaded = load_oracle(path, resolution=resolution)
    network, size, training = loaded.network, None, None
    if isinstance(network, UNet):
        size = find_weights(path).stat().st_size
        with contextlib.suppress(CheckpointError):  # published checkpoints have no such record
            training = read_weights(path)[1]["training"]
    return {
        "path": str(path),
        "bytes": size,
        "kind": loaded.kind,
        "shape": list(loaded.store.shape),
        "num_classes": loaded.num_classes,
        "sigma_min": loaded.sigma_min,
        "sigma_max": loaded.sigma_max,
        "parameters": sum(p.numel() for n, p in network.named_parameters() if n != TABLE),
        "network": asdict(network.config) if isinstance(network, UNet) else None,
        "training": training,
    }


def _losses(points: list[list[Any]]) -> str:
    """The first, middle and last recorded losses as text."""
    chosen = {0, len(points) // 2, len(points) - 1}
    return ", ".join(f"{points[i][1]:.4f} at step {points[i][0]:,}" for i in sorted(chosen))
