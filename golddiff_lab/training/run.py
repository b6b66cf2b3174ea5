"""The state of a training run, and the files from which it is resumed."""

from __future__ import annotations

import copy
import csv
import io
import itertools
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import nn

from golddiff.oracles.diffusers_unet import CONFIG
from golddiff.oracles.files import WEIGHTS, read_weights
from golddiff.oracles.unet import UNet
from golddiff.oracles.weights import regular_file
from golddiff.store.build import PIXELS
from golddiff.store.images import ImageStore
from golddiff.store.manifest import NAME as MANIFEST
from golddiff.system.errors import ArgumentError, CheckpointError
from golddiff.system.files import atomic_write
from golddiff.system.torch_files import read_torch
from golddiff_lab.training.settings import TrainSettings
from golddiff_lab.training.writing import describe_network, write_folder

STATE = "state.pt"
LOSSES = "loss.csv"
VERSION = 2
# From this width on a CPU convolves faster in the channels-last layout; a GPU always does.
WIDE = 64
DEFAULT_MINUTES = 60.0  # of a run that limits neither time nor steps
WINDOW = 25  # steps per entry of the loss history
# Settings that may change when a run is resumed
FREE = {"minutes", "steps", "falling", "average", "precision", "device"}


@dataclass
class Run:
    """A training run and its progress.

    Attributes:
        settings: settings of the run.
        network, average: the trained network, and one with its averaged weights (EMA).
        optimiser: Adam.
        draws: random generator of images, timesteps and noise.
        step: number of steps taken.
        elapsed: seconds of training.
        history: (step, seconds, mean loss, learning rate), one entry per window of steps.
        recent: losses of the current window.
        seen: number of images that the initial weights were trained on.
        commands: the command lines of the run; more than one if settings changed on the way.
    """

    settings: TrainSettings
    network: UNet
    average: UNet
    optimiser: torch.optim.Optimizer
    draws: torch.Generator
    step: int = 0
    elapsed: float = 0.0
    history: list[tuple[int, float, float, float]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)
    seen: int = 0
    commands: list[str] = field(default_factory=list)

    @property
    def share(self) -> float:
        """Finished fraction of the time or the steps; the run ends at 1."""
        s = self.settings
        minutes = s.minutes or (None if s.steps else DEFAULT_MINUTES)
        by_time = self.elapsed / (60 * minutes) if minutes else 0.0
        return max(by_time, self.step / s.steps if s.steps else 0.0)

    def record(self, loss: float, rate: float, seconds: float) -> None:
        """Count a step and add its loss to the history."""
        self.step += 1
        self.elapsed += seconds
        self.recent.append(loss)
        if len(self.recent) >= WINDOW:
            self.history.append((self.step, round(self.elapsed, 2), fmean(self.recent), rate))
            self.recent = []

    def summary(self) -> list[list[float]]:
        """At most 20 points (step, loss) along the run, each a mean over its interval."""
        count = min(20, len(self.history))
        cuts = [len(self.history) * i // count for i in range(count + 1)] if count else []
        parts = [self.history[a:b] for a, b in itertools.pairwise(cuts)]
        return [[part[-1][0], round(fmean(loss for _, _, loss, _ in part), 5)] for part in parts]


def start(store: ImageStore, out: Path, settings: TrainSettings) -> Run:
    """Create a run, or resume it if ``out`` holds a state."""
    resumed = (out / STATE).exists()
    if not resumed:
        for name in (CONFIG, WEIGHTS, MANIFEST):
            if (out / name).exists():
                raise ArgumentError(
                    f"out: {out} has {name} but no {STATE} to continue from; give another folder"
                )
    config = settings.network(store)
    torch.manual_seed(settings.seed)
    network, seen = UNet(config), 0
    initialise(network)
    if settings.weights is not None:
        seen = _start_from(Path(settings.weights), network, settings.prediction)
    network = network.to(settings.device)
    if settings.device != "cpu" or settings.channels >= WIDE:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    average = copy.deepcopy(network).eval().requires_grad_(False)
    trainable = [p for p in network.parameters() if p.requires_grad]
    optimiser = torch.optim.Adam(trainable, settings.learning_rate)
    draws = torch.Generator(settings.device).manual_seed(settings.seed)
    run = Run(settings, network, average, optimiser, draws, seen=seen)
    if resumed:
        read_state(out, run, fingerprint(store))
    return run


def _start_from(path: Path, network: UNet, prediction: str) -> int:
    """Load the weights of another run; return the number of images that it was trained on."""
    trained, description = read_weights(path)
    theirs, ours = ({**asdict(n.config), "dropout": None} for n in (trained, network))
    theirs["prediction"], ours["prediction"] = description["prediction"], prediction
    if differing := [name for name in ours if theirs[name] != ours[name]]:
        raise ArgumentError(
            f"weights: {path} has "
            + ", ".join(f"{name} {theirs[name]} (here {ours[name]})" for name in differing)
        )
    network.load_state_dict(trained.state_dict())
    training = description["training"]
    try:
        images_seen = training.get("images_seen")
        return int(images_seen or training["steps"] * training["settings"]["batch"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"weights: {path} does not say how it was trained") from error


def initialise(network: UNet) -> None:
    """Initialise as Ho et al. do: Glorot-uniform, nearly zero at the end of residual branches."""
    for name, layer in network.named_modules():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            ends_branch = name.endswith(("block2.3", "attn.proj", "tail.2"))
            nn.init.xavier_uniform_(layer.weight, gain=1e-5 if ends_branch else 1.0)
            assert layer.bias is not None
            nn.init.zeros_(layer.bias)
        elif name == "class_embedding":
            nn.init.normal_(layer.weight, std=0.02)


def save(run: Run, store: ImageStore, out: Path) -> None:
    """Write the averaged weights, the losses and the state to resume from, each file atomically."""
    settings = run.settings
    state = {
        "version": VERSION,
        "settings": settings.as_dict(),
        "data": fingerprint(store),
        "network": run.network.state_dict(),
        "average": run.average.state_dict(),
        "optimiser": run.optimiser.state_dict(),
        "draws": run.draws.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if settings.device.startswith("cuda") else None,
        "step": run.step,
        "elapsed": run.elapsed,
        "history": [list(row) for row in run.history],
        "recent": run.recent,
        "commands": run.commands,
    }
    training = {
        "data": store.manifest.source,
        "images": store.n,
        "class_names": store.class_names if settings.conditional else None,
        "steps": run.step,
        "images_seen": run.seen + run.step * settings.batch,
        "minutes": round(run.elapsed / 60, 2),
        "loss": run.summary(),
        "settings": settings.as_dict(),
        "command": " && ".join(run.commands) or None,
    }
    description = describe_network(
        run.average.config, store.shape[1], store.is_pixels, training, settings.prediction
    )
    write_folder(out, run.average, description)
    with atomic_write("out", out / LOSSES) as temporary, temporary.open("w") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "seconds", "loss", "learning_rate"])
        writer.writerows(run.history)
    # The last, because a finished run is not saved again.
    with atomic_write("out", out / STATE) as temporary:
        body = io.BytesIO()
        torch.save(state, body)
        temporary.write_bytes(body.getbuffer())


def fingerprint(store: ImageStore) -> str:
    """Identify a training set by its content, wherever its store is."""
    return f"{store.n} images {store.manifest.files[PIXELS].sha256[:16]}"


def read_state(folder: Path, run: Run, data: str) -> None:
    """Restore a run at its first step, in place; ``data`` is the :func:`fingerprint` of its images.

    Raises:
        ArgumentError: the saved run has other settings or other images.
        CheckpointError: the file is damaged.
    """
    path = folder / STATE
    try:
        state: dict[str, Any] = read_torch(regular_file(path))
    except CheckpointError as error:
        raise CheckpointError(
            f"out: {path} is not the state of a training run; delete it to start again, or give "
            "another folder"
        ) from error
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise CheckpointError(f"out: {path} is not the state of a training run of this version")
    try:
        _check_same(folder, state, run.settings.as_dict(), data)
        _restore(run, state)
    except ArgumentError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"out: {path} is damaged: it is not the whole state of a training run"
        ) from error


def _check_same(folder: Path, state: dict[str, Any], settings: dict[str, Any], data: str) -> None:
    saved = state["settings"]
    for name in settings.keys() - FREE:
        if saved.get(name) != settings[name]:
            raise ArgumentError(
                f"{name}: got {settings[name]!r}, but the run in {folder} has "
                f"{saved.get(name)!r}; train in another folder"
            )
    if state["data"] != data:
        raise ArgumentError(
            f"data: got {data}, but the run in {folder} uses {state['data']}; train in another "
            "folder"
        )


def _restore(run: Run, state: dict[str, Any]) -> None:
    run.network.load_state_dict(state["network"])
    run.average.load_state_dict(state["average"])
    run.optimiser.load_state_dict(state["optimiser"])
    torch.set_rng_state(state["torch"])
    if torch.device(state["settings"]["device"]).type != run.draws.device.type:
        run.draws.manual_seed(run.settings.seed + state["step"])  # its state fits one device kind
    else:
        run.draws.set_state(state["draws"])
        if state["cuda"] is not None:
            torch.cuda.set_rng_state(state["cuda"])
    run.step, run.elapsed, run.recent = state["step"], state["elapsed"], state["recent"]
    run.commands = state.get("commands", [])  # older states have none
    run.history = [tuple(row) for row in state["history"]]
