"""Sides take turns: whatever else the machine does, it does to all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from golddiff_lab.race.work import Work
from golddiff_lab.race.worker import Remote

# After a step its threads wait actively for the next one; meanwhile another side's turn is up.
PAUSE = 0.02


@dataclass(frozen=True)
class Timing:
    """One side at one noise level.

    Attributes:
        seconds: median of a step of the whole batch, over all images.
        measured: every timed step, in turn; over fewer images where ``extrapolated``.
        first: the first step at this level, which makes masks and compiles; where there is
            nothing to make, the first that was timed.
        work: of one step, or None.
        out: (B, *shape) output, or None where the side did not scan all images.
        extrapolated: seconds were drawn out on a straight line through two numbers of images.
        straightness: then, seconds over a third number of images between the two / the line's.
    """

    seconds: float
    measured: list[float]
    first: float
    work: Work | None
    out: torch.Tensor | None
    extrapolated: bool = False
    straightness: float | None = None


def race(
    sides: Sequence[Remote],
    x: torch.Tensor,
    sigma: float,
    repeats: int,
    images: int,
    on_step: Callable[[], None] = lambda: None,
) -> dict[str, Timing]:
    """Time every side at one noise level: a step each to warm up, then ``repeats`` in turns.

    Args:
        sides: in the order in which they take turns.
        x: (B, *shape) queries, the same for all.
        sigma: noise level.
        repeats: timed steps of each side.
        images: that there are; a side that scans fewer is drawn out to them.
        on_step: called after every step of every side.
    """
    firsts: dict[str, float] = {}
    outs: dict[str, torch.Tensor] = {}
    taken: dict[str, dict[str, list[float]]] = {}
    for side in sides:
        if side.warm_up:
            firsts[side.spec.name], outs[side.spec.name] = side.step(x, sigma)
        parts = ["step"] if side.images is None else ["step", "half", "quarter"]
        taken[side.spec.name] = {part: [] for part in parts}
        on_step()
    for _ in range(repeats):
        for side in sides:
            time.sleep(PAUSE)
            for part, seconds in taken[side.spec.name].items():
                took, out = side.step(x, sigma, part)
                seconds.append(took)
                if part == "step":
                    firsts.setdefault(side.spec.name, took)
                    outs.setdefault(side.spec.name, out)
            on_step()
    timings = {}
    for side in sides:
        name = side.spec.name
        medians = {part: statistics.median(seconds) for part, seconds in taken[name].items()}
        work = side.work(x, sigma)
        measured, first = taken[name]["step"], firsts[name]
        if side.images is None:
            timings[name] = Timing(medians["step"], measured, first, work, outs[name])
            continue
        line = straight_line(side.images // 4, medians["quarter"], side.images, medians["step"])
        straightness = medians["half"] / line(side.images // 2)
        timings[name] = Timing(line(images), measured, first, work, None, True, straightness)
    return timings


def straight_line(x0: float, y0: float, x1: float, y1: float) -> Callable[[float], float]:
    """The line through two points.

    Of a scan's seconds over the images: its fixed part (the masks) stays fixed, where plain scaling
    would multiply it.
    """
    slope = (y1 - y0) / (x1 - x0)
    return lambda x: y0 + slope * (x - x0)
