"""``python -m golddiff_lab.restoring STORE OTHERS``: measure the error of restored pictures.

Pictures that are not in the store lose a square in the middle, or are shrunk by 4 along each axis.
The baselines are bicubic upscaling, and pasting in the training image that fits best around the
hole.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch.nn.functional import interpolate

from golddiff import metrics
from golddiff.cli.options import JsonPath
from golddiff.cli.terminal import say, write_json
from golddiff.estimators.measurement import expected
from golddiff.estimators.operators import kept, smaller
from golddiff.evaluation.restored import SOFTNESS, restore
from golddiff.store.images import ImageStore
from golddiff.store.likelihood import log_likelihood
from golddiff.system.markdown import markdown_table, number
from golddiff_lab.arguments import check_others, check_side
from golddiff_lab.programs import program

HOLE = 12  # pixels a side
FACTOR = 4
ERRORS = ("error", "error_of_mean", "error_of_expected", "compared")
NOISE = 1.0  # the best fit does not depend on it


def compared(
    store: ImageStore, truth: torch.Tensor, softness: float = SOFTNESS, draws: int = 1
) -> list[dict[str, Any]]:
    """Mean squared errors of the restorations and of the baselines, for both tasks.

    The store must not include the pictures ``truth`` (B, C, H, W), in [-1, 1]. Errors are of the
    first of the ``draws`` restorations of each picture, and of their mean.
    """
    height, width = truth.shape[2:]
    top, left = (height - HOLE) // 2, (width - HOLE) // 2
    known = torch.ones(height, width, dtype=torch.bool)
    known[top : top + HOLE, left : left + HOLE] = False
    hole, shrink = kept(known), smaller(FACTOR)
    nearest = store.images(log_likelihood(store, hole, hole(truth), NOISE).argmax(dim=1))
    bicubic = interpolate(shrink(truth), scale_factor=FACTOR, mode="bicubic").clamp(-1, 1)
    tasks = []
    for task, operator, baseline, evaluated in (
        (f"upscaling {FACTOR} times", shrink, bicubic, torch.ones_like(known)),
        (f"hole of {HOLE} x {HOLE}", hole, nearest, ~known),
    ):
        y, start = operator(truth), time.process_time()
        run = restore(store, y, operator, 0.0, softness=softness, n=draws)
        seconds = time.process_time() - start
        restored = run.images.reshape(len(truth), draws, *truth.shape[1:])
        first, mean = restored[:, 0], restored.mean(dim=1)
        results = {"error": first, "error_of_mean": mean, "compared": baseline,
                   "error_of_expected": expected(store, operator, y)}  # fmt: skip
        tasks.append({
            "task": task,
            **{k: float((v - truth)[..., evaluated].square().mean()) for k, v in results.items()},
            "sharpness": metrics.sharpness(first, truth),
            "missed": float((operator(first) - y).square().mean().sqrt()),
            "copies": int(run.novelty.copies.sum()),
            "seconds": seconds,
        })  # fmt: skip
    return tasks


def main(
    store: Annotated[Path, typer.Argument(help="A store.")],
    others: Annotated[Path, typer.Argument(help="A store of pictures that are not in it.")],
    n: Annotated[int, typer.Option(help="Number of these pictures to restore.", min=1)] = 64,
    draws: Annotated[int, typer.Option(help="Restorations of each, for their mean.", min=1)] = 1,
    json: JsonPath = None,
) -> None:
    """Print a table of the errors."""
    training, test = ImageStore.open(store), ImageStore.open(others)
    check_side(training, HOLE)
    check_others(test, training, n)
    tasks = compared(training, test.images(range(n)), draws=draws)
    header = ["", "restored", f"mean of {draws}", "expected", "bicubic, or nearest pasted in",
              "sharpness", "measured, off by", "copies", "processor s"]  # fmt: skip
    rows = [
        [t["task"], *(number(t[key], ".4f") for key in ERRORS),
         number(t["sharpness"], ".2f"), number(t["missed"], ".4f"), str(t["copies"]),
         number(t["seconds"], ".0f")]
        for t in tasks
    ]  # fmt: skip
    say(*markdown_table(header, rows))
    write_json(json, {"n": n, "draws": draws, "tasks": tasks})


if __name__ == "__main__":
    sys.exit(program("restoring", main))
