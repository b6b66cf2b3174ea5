"""Race several sides, each in its own process, at one noise level; results are table rows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from golddiff_lab.process import Process
from golddiff_lab.sides import SideSpec
from golddiff_lab.timing import Timing, in_turns
from golddiff_lab.truth import rmse

Row = dict[str, Any]

WITHIN = 0.95  # quantile of the error over queries


@contextlib.contextmanager
def started(specs: Sequence[SideSpec]) -> Iterator[list[Process]]:
    """Start the sides in parallel, each in its own process."""
    with contextlib.ExitStack() as stack:
        sides = [Process(spec) for spec in specs]
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
    """One row per side: time per image and step, errors, and number of images weighed.

    All sides get the queries ``x`` (B, *shape). ``exact`` holds, by side name, the full scan
    (b, *shape) of the first b <= B queries. ``seconds`` limits the time of a side's ``repeats``
    timed steps.
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
            "images": side.ask("weighed", x.numpy(), sigma),
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
    outputs = torch.from_numpy(out[: len(exact)])
    errors = [rmse(output, truth) for output, truth in zip(outputs, exact, strict=True)]
    quantile = float(np.quantile(errors, WITHIN, method="inverted_cdf"))
    return {"truth_queries": len(exact), "rmse": rmse(outputs, exact), "rmse_95": quantile}
