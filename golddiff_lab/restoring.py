"""``python -m golddiff_lab.restoring STORE OTHERS``: how near restored pictures come to the truth.

Pictures that are not in the store lose a square in the middle, or three of four pixels along each
axis. Beside the restorations: bicubic upscaling, and the training image that fits best around the
hole, pasted in.
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
from golddiff_lab.arguments import check_others, check_side
from golddiff_lab.programs import program
from golddiff_lab.tables import markdown_table, number

HOLE = 12  # pixels a side
FACTOR = 4
ERRORS = ("error", "error_of_mean", "error_of_expected", "compared")
NOISE = 1.0  # the best fit is the same at any


def compared(
    store: ImageStore, truth: torch.Tensor, softness: float = SOFTNESS, draws: int = 1
) -> list[dict[str, Any]]:
    """Mean squared errors of both tasks, of ours and of what it is compared with.

    Args:
        store: the prior, without the pictures.
        truth: (B, C, H, W) in [-1, 1], of the store's shape.
        softness: see :func:`golddiff.restore`.
        draws: restorations of each picture; errors are of the first, and of their mean.
    """
    height, width = truth.shape[2:]
    top, left = (height - HOLE) // 2, (width - HOLE) // 2
    known = torch.ones(height, width, dtype=torch.bool)
    known[top : top + HOLE, left : left + HOLE] = False
    hole, less = kept(known), smaller(FACTOR)
    nearest = store.images(log_likelihood(store, hole, hole(truth), NOISE).argmax(dim=1))
    bicubic = interpolate(less(truth), scale_factor=FACTOR, mode="bicubic").clamp(-1, 1)
    found = []
    for task, operator, other, where in (
        (f"upscaling {FACTOR} times", less, bicubic, torch.ones_like(known)),
        (f"hole of {HOLE} x {HOLE}", hole, nearest, ~known),
    ):
        y, start = operator(truth), time.process_time()
        run = restore(store, y, operator, 0.0, softness=softness, n=draws)
        seconds = time.process_time() - start
        each = run.images.reshape(len(truth), draws, *truth.shape[1:])
        first, mean = each[:, 0], each.mean(dim=1)
        shown = {"error": first, "error_of_mean": mean, "compared": other,
                 "error_of_expected": expected(store, operator, y)}  # fmt: skip
        found.append({
            "task": task,
            **{k: float((v - truth)[..., where].square().mean()) for k, v in shown.items()},
            "sharpness": metrics.sharpness(first, truth),
            "missed": float((operator(first) - y).square().mean().sqrt()),
            "copies": int(run.novelty.copies.sum()),
            "seconds": seconds,
        })  # fmt: skip
    return found


def main(
    store: Annotated[Path, typer.Argument(help="A store.")],
    others: Annotated[Path, typer.Argument(help="A store of pictures that are not in it.")],
    n: Annotated[int, typer.Option(help="How many of them.", min=1)] = 64,
    draws: Annotated[int, typer.Option(help="Restorations of each, for their mean.", min=1)] = 1,
    json: JsonPath = None,
) -> None:
    """Print the table."""
    prior, apart = ImageStore.open(store), ImageStore.open(others)
    check_side(prior, HOLE)
    check_others(apart, prior, n)
    found = compared(prior, apart.images(range(n)), draws=draws)
    header = ["", "restored", f"mean of {draws}", "expected", "bicubic, or nearest pasted in",
              "sharpness", "measured, off by", "copies", "processor s"]  # fmt: skip
    rows = [
        [f["task"], *(number(f[key], ".4f") for key in ERRORS),
         number(f["sharpness"], ".2f"), number(f["missed"], ".4f"), str(f["copies"]),
         number(f["seconds"], ".0f")]
        for f in found
    ]  # fmt: skip
    say(*markdown_table(header, rows))
    write_json(json, {"n": n, "draws": draws, "tasks": found})


if __name__ == "__main__":
    sys.exit(program("restoring", main))
