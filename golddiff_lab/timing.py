"""Sides take turns: whatever else the machine does, it does to all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from golddiff_lab.process import Process

# After a step its threads wait actively for the next one; meanwhile another side's turn is up.
PAUSE = 0.02


@dataclass(frozen=True)
class Timing:
    """One side at one noise level.

    Attributes:
        seconds: median of a step of the whole batch, over all images.
        measured: every timed step, in turn; over fewer images where ``straightness`` is told.
        first: the first step at this level, which makes masks and compiles; where there is
            nothing to make, the first that was timed.
        out: (B, *shape) output, or None where the side did not scan all images.
        straightness: where seconds were drawn out on a straight line through two numbers of images:
            seconds over a third number of images between the two / the line's.
    """

    seconds: float
    measured: list[float]
    first: float
    out: torch.Tensor | None
    straightness: float | None = None


def race(
    sides: Sequence[Process],
    x: torch.Tensor,
    sigma: float,
    repeats: int,
    images: int,
    on_step: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time every side at one noise level: a step each to warm up, then ``repeats`` in turns.

    Args:
        sides: processes of :class:`golddiff_lab.running.RunningSide`, in the order of their turns.
        x: (B, *shape) queries, the same for all.
        sigma: noise level.
        repeats: timed steps of each side.
        images: that there are; a side that scans fewer is drawn out to them.
        on_step: called after every step of every side.
    """
    about = {side.name: side.ask("about") for side in sides}
    kept: dict[str, list[tuple[float, torch.Tensor]]] = {side.name: [] for side in sides}
    parts: dict[str, dict[str, list[float]]] = {side.name: {} for side in sides}

    def step(side: Process, part: str = "step") -> float:
        seconds, out = side.ask("step", x.numpy(), sigma, part)
        if part == "step" and not kept[side.name]:
            kept[side.name].append((seconds, torch.from_numpy(out)))
        return float(seconds)

    for side in sides:
        if about[side.name][2]:
            step(side)
        on_step()
    for _ in range(repeats):
        for side in sides:
            time.sleep(PAUSE)
            names = ("step",) if about[side.name][1] is None else ("step", "half", "quarter")
            for part in names:
                parts[side.name].setdefault(part, []).append(step(side, part))
            on_step()
    return {name: _timing(parts[name], *kept[name][0], about[name][1], images) for name in parts}


def _timing(
    parts: dict[str, list[float]], first: float, out: torch.Tensor, scanned: int | None, images: int
) -> Timing:
    medians = {part: statistics.median(seconds) for part, seconds in parts.items()}
    if scanned is None:
        return Timing(medians["step"], parts["step"], first, out)
    line = straight_line(scanned // 4, medians["quarter"], scanned, medians["step"])
    straightness = medians["half"] / line(scanned // 2)
    return Timing(line(images), parts["step"], first, None, straightness)


def straight_line(x0: float, y0: float, x1: float, y1: float) -> Callable[[float], float]:
    """The line through two points.

    Of a scan's seconds over the images: its fixed part (the masks) stays fixed, where plain scaling
    would multiply it.
    """
    slope = (y1 - y0) / (x1 - x0)
    return lambda x: y0 + slope * (x - x0)
