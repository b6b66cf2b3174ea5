"""The state of a training run on disk: what it takes to go on as if it had not stopped."""

from __future__ import annotations

import csv
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from golddiff.oracles.unet import UNet
from golddiff.oracles.weights import regular_file
from golddiff.system.errors import ArgumentError, CheckpointError
from golddiff.system.files import written_whole
from golddiff.system.torch_files import read_torch
from golddiff_lab.training.clock import StepClock
from golddiff_lab.training.settings import TrainSettings

STATE = "state.pt"
LOSSES = "loss.csv"
VERSION = 2
# What may differ when a run goes on: how long, how it ends, and where it runs.
FREE = {"minutes", "steps", "falling", "average", "precision", "device"}


@dataclass
class Progress:
    """How far a run has come.

    Attributes:
        step: steps taken.
        elapsed: seconds that they took.
        history: (step, seconds, mean loss, learning rate), one entry a window of steps.
        recent: losses of the window that is not full yet.
    """

    step: int = 0
    elapsed: float = 0.0
    history: list[tuple[int, float, float, float]] = field(default_factory=list)
    recent: list[float] = field(default_factory=list)

    def record(self, loss: float, rate: float, elapsed: float, window: int) -> None:
        """Add the loss of one step."""
        self.elapsed = elapsed
        self.recent.append(loss)
        if len(self.recent) >= window:
            mean = sum(self.recent) / len(self.recent)
            self.history.append((self.step, round(elapsed, 2), mean, rate))
            self.recent = []

    def summary(self) -> list[list[float]]:
        """At most 20 points (step, loss) along the run, each the mean of its stretch."""
        losses = [(step, loss) for step, _, loss, _ in self.history]
        count = min(20, len(losses))
        cuts = [len(losses) * i // count for i in range(count + 1)] if count else [0]
        parts = [losses[a:b] for a, b in itertools.pairwise(cuts)]
        return [[part[-1][0], round(sum(x for _, x in part) / len(part), 5)] for part in parts]

    def write(self, folder: Path) -> None:
        """Write ``loss.csv``."""
        with written_whole("out", folder / LOSSES) as temporary, temporary.open("w") as file:
            writer = csv.writer(file)
            writer.writerow(["step", "seconds", "loss", "learning_rate"])
            writer.writerows(self.history)


@dataclass
class Run:
    """A training run: all that a step changes."""

    network: UNet
    average: UNet
    optimiser: torch.optim.Optimizer
    draws: torch.Generator
    progress: Progress
    clock: StepClock


def write_state(folder: Path, settings: TrainSettings, run: Run, data: str) -> None:
    """Write weights, averages, optimiser, generators and progress as one file."""
    state = {
        "version": VERSION,
        "settings": settings.as_dict(),
        "data": data,
        "network": run.network.state_dict(),
        "average": run.average.state_dict(),
        "optimiser": run.optimiser.state_dict(),
        "draws": run.draws.get_state(),
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if settings.device.startswith("cuda") else None,
        "step": run.progress.step,
        "elapsed": run.progress.elapsed,
        "history": [list(row) for row in run.progress.history],
        "recent": run.progress.recent,
    }
    with written_whole("out", folder / STATE) as temporary:
        torch.save(state, temporary)


def read_state(folder: Path, settings: TrainSettings, run: Run, data: str) -> None:
    """Bring a run to where the state left it.

    Raises:
        ArgumentError: the state is of a run with other settings.
        CheckpointError: the file is damaged.
    """
    path = folder / STATE
    try:
        state: dict[str, Any] = read_torch(regular_file(path))
    except CheckpointError as error:
        raise CheckpointError(f"out: {path} is not the state of a training run") from error
    if not isinstance(state, dict) or state.get("version") != VERSION:
        raise CheckpointError(f"out: {path} is not the state of a training run of this version")
    try:
        _restore(folder, state, settings, run, data)
    except (ArgumentError, CheckpointError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"out: {path} is damaged: it is not the whole state of a training run"
        ) from error


def _restore(
    folder: Path, state: dict[str, Any], settings: TrainSettings, run: Run, data: str
) -> None:
    before, now = state["settings"], settings.as_dict()
    for name in now.keys() - FREE:
        if before.get(name) != now[name]:
            raise ArgumentError(
                f"{name}: got {now[name]!r}, but the run in {folder} has {before.get(name)!r}; "
                "train in another folder"
            )
    if state.get("data", data) != data:
        raise ArgumentError(
            f"data: got {data}, but the run in {folder} is of {state['data']}; train in another "
            "folder"
        )
    run.network.load_state_dict(state["network"])
    run.average.load_state_dict(state["average"])
    run.optimiser.load_state_dict(state["optimiser"])
    run.draws.set_state(state["draws"])
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None and settings.device.startswith("cuda"):
        torch.cuda.set_rng_state(state["cuda"])
    run.progress.step, run.progress.elapsed = state["step"], state["elapsed"]
    run.progress.history = [tuple(row) for row in state["history"]]
    run.progress.recent = state["recent"]
    run.clock.elapsed = state["elapsed"]
