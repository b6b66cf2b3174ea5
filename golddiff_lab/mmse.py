"""``python -m golddiff_lab.mmse STORE``: compare ``Optimal`` with deepinv's closed-form ``MMSE``.

Both return E[x0 | x] over all images of a store. The program times a batch with and without a
gradient, and measures the difference of the results. Needs deepinv.
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
from golddiff.system.markdown import markdown_table
from golddiff_lab.arguments import check_deepinv
from golddiff_lab.programs import program
from golddiff_lab.queries import noised
from golddiff_lab.timing import in_turns, timed

SIGMAS = (20.0, 3.0, 0.5)  # for images in [-1, 1]
TOL = 0.01
THEIRS = "MMSE"
HEADER = ["sigma", "", "ms", "times", "ms, gradient", "times", "apart"]


def compared(
    store: ImageStore, batch: int, repeats: int, sigmas: tuple[float, ...] = SIGMAS
) -> list[dict[str, Any]]:
    """One row per noise level and denoiser: seconds per batch, and RMSE to deepinv in [0, 1].

    Queries are training images with noise. A time is the median of ``repeats`` calls.
    """
    from deepinv.models import MMSE

    from golddiff.deepinv import AnalyticDenoiser

    adaptive = GoldDiff(Optimal(store), AdaptiveSchedule(TOL, index=True))
    models = {
        THEIRS: MMSE((store.images() + 1) / 2, torch.device("cpu"), torch.float32),
        "Optimal": AnalyticDenoiser(Optimal(store)),
        f"adaptive, {TOL}": AnalyticDenoiser(adaptive),
    }
    rows = []
    for sigma, x in zip(sigmas, noised(store, sigmas, batch, 0), strict=True):
        query, level = (x + 1) / 2, sigma / 2  # deepinv's range is [0, 1]
        forward, backward = (
            in_turns({n: partial(timed, partial(call, m, query, level)) for n, m in models.items()},
                     repeats)
            for call in (_forward, _gradient)
        )  # fmt: skip
        for name in models:
            rmse = (forward[name].out - forward[THEIRS].out).square().mean().sqrt()
            rows.append({
                "sigma": sigma, "side": name, "seconds": forward[name].seconds,
                "with_gradient": backward[name].seconds, "apart": float(rmse),
            })  # fmt: skip
    return rows


def _forward(model: Any, x: torch.Tensor, level: float) -> torch.Tensor:
    with torch.no_grad():
        out: torch.Tensor = model(x, level)
    return out


def _gradient(model: Any, x: torch.Tensor, level: float) -> torch.Tensor:
    query = x.clone().requires_grad_()
    return torch.autograd.grad(model(query, level).square().sum(), query)[0]


def main(
    store: Annotated[Path, typer.Argument(help="A store of pixels.")],
    batch: Annotated[int, typer.Option(help="Queries per call.", min=1)] = 16,
    repeats: Annotated[int, typer.Option(help="Timed calls of each side.", min=1)] = 5,
    json: JsonPath = None,
) -> None:
    """Print a table of times and of speed-ups over deepinv at every noise level."""
    check_deepinv()
    rows = compared(ImageStore.open(store), batch, repeats)
    deepinv_rows = {row["sigma"]: row for row in rows if row["side"] == THEIRS}
    table = []
    for row in rows:
        cells = [f"{row['sigma']:g}", row["side"]]
        for key in ("seconds", "with_gradient"):
            times = deepinv_rows[row["sigma"]][key] / row[key]
            cells += [f"{1e3 * row[key]:.0f}", f"{times:.1f}"]
        table.append([*cells, f"{row['apart']:.1g}"])
    say(*markdown_table(HEADER, table, left=2))
    write_json(json, {"batch": batch, "rows": rows})


if __name__ == "__main__":
    sys.exit(program("mmse", main))
