"""Sides in processes of their own at one noise level after the other: rows of plain values."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from golddiff_lab.process import Process
from golddiff_lab.running import RunningSide
from golddiff_lab.sides import SideSpec
from golddiff_lab.timing import Timing, in_turns
from golddiff_lab.truth import rmse

Row = dict[str, Any]

WITHIN = 0.95  # of the queries


@contextlib.contextmanager
def started(specs: Sequence[SideSpec]) -> Iterator[list[Process]]:
    """The sides, started together, each in a process of its own."""
    with contextlib.ExitStack() as stack:
        sides = [Process(spec.name, RunningSide, spec, spec.threads) for spec in specs]
        for side in sides:
            stack.callback(side.close)
        for side in sides:
            stack.enter_context(side)
        yield sides


def level_rows(
    sides: Sequence[Process],
    sigma: float,
    x: torch.Tensor,
    exact: Mapping[str, torch.Tensor],
    repeats: int,
    seconds: float,
) -> list[Row]:
    """A row a side: times of an image and step, errors, how many images it weighs.

    Args:
        sides: processes of :class:`golddiff_lab.running.RunningSide`, in the order of their turns.
        sigma: noise level.
        x: (B, *shape) queries, the same for all.
        exact: by name of the side, (b, *shape) the full scan of the first b <= B of them.
        repeats: timed steps of each side.
        seconds: that they may take; see :func:`golddiff_lab.timing.in_turns`.
    """
    timings = in_turns(
        {side.name: partial(side.ask, "step", x.numpy(), sigma) for side in sides},
        repeats, seconds,
    )  # fmt: skip
    return [
        {
            "sigma": sigma,
            "side": side.name,
            **_times(timings[side.name], len(x)),
            **_errors(timings[side.name].out, exact.get(side.name)),
            **side.ask("about", x.numpy(), sigma),
        }
        for side in sides
    ]


def _times(timing: Timing, images: int) -> Row:
    return {
        "seconds": timing.seconds / images,
        "processor_seconds": timing.processor / images,
        "seconds_measured": [seconds / images for seconds in timing.measured],
        "seconds_first": timing.first / images,
    }


def _errors(out: np.ndarray[Any, Any], exact: torch.Tensor | None) -> Row:
    if exact is None or len(exact) == 0:
        return {"truth_queries": 0, "rmse": None, "rmse_95": None}
    some = torch.from_numpy(out[: len(exact)])
    each = [rmse(one, its) for one, its in zip(some, exact, strict=True)]
    most = float(np.quantile(each, WITHIN, method="inverted_cdf"))
    return {"truth_queries": len(exact), "rmse": rmse(some, exact), "rmse_95": most}
