"""Sides take turns: whatever else the machine does, it does to all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

CPU = torch.device("cpu")
# After a step its threads wait actively for the next one; meanwhile another side's turn is up.
PAUSE = 0.02


@dataclass(frozen=True)
class Timed:
    """One call: seconds, processor seconds of all threads, and what came out."""

    seconds: float
    processor: float
    out: Any


@dataclass(frozen=True)
class Timing:
    """One side's calls.

    Attributes:
        seconds, processor: the median of those that were timed.
        measured: seconds of each of them, in turn.
        first: seconds of the call before them, which makes masks and compiles.
        out: what that one gave.
    """

    seconds: float
    processor: float
    measured: list[float]
    first: float
    out: Any


def timed(work: Callable[[], Any], device: torch.device = CPU) -> Timed:
    """One call, with what a device was given before and in it done."""
    _wait(device)
    start, processor = time.perf_counter(), time.process_time()
    out = work()
    _wait(device)
    return Timed(time.perf_counter() - start, time.process_time() - processor, out)


def in_turns(
    sides: Mapping[str, Callable[[], Timed]], repeats: int, seconds: float = float("inf")
) -> dict[str, Timing]:
    """Every side once, untimed, then ``repeats`` times by turns.

    Args:
        sides: a call of each.
        repeats: timed calls of each.
        seconds: a side whose timed calls have taken so long is not timed again.
    """
    first = {name: side() for name, side in sides.items()}
    found: dict[str, list[Timed]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            if not found[name] or sum(one.seconds for one in found[name]) < seconds:
                time.sleep(PAUSE)
                found[name].append(side())
    return {
        name: Timing(
            statistics.median(one.seconds for one in calls),
            statistics.median(one.processor for one in calls),
            [one.seconds for one in calls],
            first[name].seconds,
            first[name].out,
        )
        for name, calls in found.items()
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize()
