"""Time several sides in turn, so that other load on the machine affects all of them equally."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

CPU = torch.device("cpu")
# Threads of a finished step spin for a while; this pause keeps them out of the next side's time.
PAUSE = 0.02


@dataclass(frozen=True)
class Timed:
    """One timed call: wall seconds, CPU seconds of all threads, and the result."""

    seconds: float
    processor: float
    out: Any


@dataclass(frozen=True)
class Timing:
    """The timings of one side.

    Attributes:
        seconds, processor: medians over the timed calls.
        measured: seconds of each timed call, in order.
        first: seconds of the warm-up call, which computes masks and compiles kernels.
        out: result of the warm-up call.
    """

    seconds: float
    processor: float
    measured: list[float]
    first: float
    out: Any


def timed(work: Callable[[], Any], device: torch.device = CPU) -> Timed:
    """Time one call; the device is synchronised before and after it."""
    _wait(device)
    start, processor = time.perf_counter(), time.process_time()
    out = work()
    _wait(device)
    return Timed(time.perf_counter() - start, time.process_time() - processor, out)


def in_turns(
    sides: Mapping[str, Callable[[], Timed]], repeats: int, seconds: float = float("inf")
) -> dict[str, Timing]:
    """Call every side once to warm up, then all sides in turn, ``repeats`` times.

    A side that has taken ``seconds`` is not called again.
    """
    first = {name: side() for name, side in sides.items()}
    calls: dict[str, list[Timed]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            if not calls[name] or sum(call.seconds for call in calls[name]) < seconds:
                time.sleep(PAUSE)
                calls[name].append(side())
    return {
        name: Timing(
            statistics.median(call.seconds for call in own),
            statistics.median(call.processor for call in own),
            [call.seconds for call in own],
            first[name].seconds,
            first[name].out,
        )
        for name, own in calls.items()
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        torch.get_device_module(device).synchronize()
