"""``python -m golddiff_lab.mmse STORE``: ``Optimal`` against deepinv's closed form ``MMSE``.

Both return E[x0 | x] over all images of a store. Times of a batch, without and with a gradient,
in turns, and how far the two are apart. Needs deepinv.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from golddiff.cli.options import JsonPath
from golddiff.cli.terminal import say, write_json
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.optimal import Optimal
from golddiff.store.images import ImageStore
from golddiff.supports.adaptive import AdaptiveSchedule
from golddiff_lab.arguments import check_deepinv
from golddiff_lab.programs import program
from golddiff_lab.queries import noised
from golddiff_lab.tables import markdown_table
from golddiff_lab.timing import in_turns, timed

SIGMAS = (20.0, 3.0, 0.5)  # of images in [-1, 1]
TOL = 0.01
THEIRS = "MMSE"
HEADER = ["sigma", "", "ms", "times", "ms, gradient", "times", "apart"]


def compared(
    store: ImageStore, batch: int, repeats: int, sigmas: tuple[float, ...] = SIGMAS
) -> list[dict[str, Any]]:
    """A row a noise level and denoiser: seconds of a batch, and RMSE to deepinv's, in [0, 1].

    Args:
        store: of pixels.
        batch: training images with noise.
        repeats: timed calls of each side, of which the median counts.
        sigmas: noise levels.
    """
    from deepinv.models import MMSE

    from golddiff.deepinv import AnalyticDenoiser

    adaptive = GoldDiff(Optimal(store), AdaptiveSchedule(TOL, index=True))
    models = {
        THEIRS: MMSE((store.images() + 1) / 2, torch.device("cpu"), torch.float32),
        "Optimal": AnalyticDenoiser(Optimal(store)),
        f"adaptive, {TOL}": AnalyticDenoiser(adaptive),
    }
    found = []
    for sigma, x in zip(sigmas, noised(store, sigmas, batch, 0), strict=True):
        asked, level = (x + 1) / 2, sigma / 2
        forward, backward = (
            in_turns({n: partial(timed, partial(call, m, asked, level)) for n, m in models.items()},
                     repeats)
            for call in (_forward, _gradient)
        )  # fmt: skip
        for name in models:
            apart = (forward[name].out - forward[THEIRS].out).square().mean().sqrt()
            found.append({
                "sigma": sigma, "side": name, "seconds": forward[name].seconds,
                "with_gradient": backward[name].seconds, "apart": float(apart),
            })  # fmt: skip
    return found


def _forward(model: Any, x: torch.Tensor, level: float) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(x, level)
    return out


def _gradient(model: Any, x: torch.Tensor, level: float) -> torch.Tensor:
    asked = x.clone().requires_grad_()
    return torch.autograd.grad(model(asked, level).square().sum(), asked)[0]


def main(
    store: Annotated[Path, typer.Argument(help="A store of pixels.")],
    batch: Annotated[int, typer.Option(help="Queries at a time.", min=1)] = 16,
    repeats: Annotated[int, typer.Option(help="Timed calls of each side.", min=1)] = 5,
    json: JsonPath = None,
) -> None:
    """Print the table; of every level, how many times as fast as deepinv's."""
    check_deepinv()
    found = compared(ImageStore.open(store), batch, repeats)
    theirs = {row["sigma"]: row for row in found if row["side"] == THEIRS}
    rows = []
    for row in found:
        cells = [f"{row['sigma']:g}", row["side"]]
        for key in ("seconds", "with_gradient"):
            times = theirs[row["sigma"]][key] / row[key]
            cells += [f"{1e3 * row[key]:.0f}", f"{times:.1f}"]
        rows.append([*cells, f"{row['apart']:.1g}"])
    say(*markdown_table(HEADER, rows, left=2))
    write_json(json, {"batch": batch, "rows": found})


if __name__ == "__main__":
    sys.exit(program("mmse", main))
