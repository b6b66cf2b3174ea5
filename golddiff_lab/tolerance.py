"""``python -m golddiff_lab.tolerance``: test tolerance and error estimates of adaptive supports.

At ten noise levels, for several tolerances and kinds of queries, it counts the outputs within the
tolerance of the full scan, and compares estimated errors with true errors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.stats import spearmanr

from golddiff.cli.command import parse_numbers
from golddiff.cli.options import JsonPath
from golddiff.cli.terminal import say, write_json
from golddiff.denoiser import Estimator
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.registry import METHODS, create
from golddiff.noise import ddim_sigmas
from golddiff.store.images import ImageStore
from golddiff.supports.adaptive import AdaptiveSchedule
from golddiff.system.errors import ArgumentError
from golddiff.system.markdown import markdown_table
from golddiff.system.numbers import check_seed
from golddiff_lab.arguments import check_others
from golddiff_lab.programs import program
from golddiff_lab.queries import TRAJECTORY_OF, held_out, noised, trajectory
from golddiff_lab.truth import Level, full_scans

RUN_AT = 0.05  # tolerance of the run that queries are taken from
KINDS = ("in the store", "not in it", "its own run", "another's run")
HEADER = ["tol", "sigma", "within", "by kind", "in full", "rank", "within x3", "s of processor"]
ESTIMATORS = [name for name in METHODS if f"adaptive-{name}" in METHODS]


def levels_of(
    full: Estimator, others: ImageStore | None, sigmas: list[float], each: int, seed: int
) -> list[Level]:
    """``each`` queries of every kind, grouped by kind, for each noise level.

    ``others`` are images that are not in the store; None: augmented copies of stored images.
    """
    store = full.store
    clean = held_out(store, each, seed) if others is None else others.images(range(each))
    noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed + 1))
    kinds = (
        noised(store, sigmas, each, seed),
        [clean + sigma * noise for sigma in sigmas],
        trajectory(GoldDiff(full, AdaptiveSchedule(RUN_AT)), sigmas, each, seed + 2),
        trajectory(create(TRAJECTORY_OF, store), sigmas, each, seed + 3),
    )
    return [(sigma, torch.cat(parts)) for sigma, *parts in zip(sigmas, *kinds, strict=True)]


def measured(
    full: Estimator,
    levels: list[Level],
    tols: Sequence[float],
    each: int,
    index: bool | None = None,
) -> list[dict[str, Any]]:
    """One record per tolerance, level and query; each kind of query uses its own seed.

    ``index`` is passed to AdaptiveSchedule.
    """
    records = []
    for (sigma, x), truth in zip(levels, full_scans(full, levels), strict=True):
        for tol in tols:
            for kind in range(len(x) // each):
                golden = GoldDiff(full, AdaptiveSchedule(tol, index=index), seed=kind)
                part = slice(kind * each, (kind + 1) * each)
                golden(x[part][:1], sigma)  # warm up: computes masks and compiles kernels
                start = time.process_time()
                out, estimates = golden.estimated(x[part], sigma)
                seconds = (time.process_time() - start) / each
                errors = (out - truth[part]).flatten(1).square().mean(1).sqrt()
                records += [
                    {"tol": tol, "sigma": sigma, "kind": KINDS[kind], "error": e, "estimate": t,
                     "seconds": seconds}
                    for e, t in zip(errors.tolist(), estimates.tolist(), strict=True)
                ]  # fmt: skip
    return records


def table(records: list[dict[str, Any]]) -> list[str]:
    """Outputs within the tolerance, in total and by kind, and the quality of the estimates."""
    rows = []
    keys = [(t, s) for t in sorted({r["tol"] for r in records})[::-1]
            for s in [*sorted({r["sigma"] for r in records})[::-1], None]]  # fmt: skip
    for tol, sigma in keys:
        chosen = [r for r in records if r["tol"] == tol and sigma in (None, r["sigma"])]
        within = [r["error"] <= tol for r in chosen]
        kinds = [[w for r, w in zip(chosen, within, strict=True) if r["kind"] == k] for k in KINDS]
        pairs = np.array([(r["estimate"], r["error"]) for r in chosen if r["estimate"] > tol / 50])
        quality = ["-", "-"]
        if len(pairs) > 2:
            ratio = pairs[:, 0] / np.maximum(pairs[:, 1], 1e-12)
            rank = float(spearmanr(*pairs.T)[0])
            quality = [f"{rank:.2f}", f"{np.mean((ratio > 1 / 3) & (ratio < 3)):.2f}"]
        rows.append([
            f"{tol:g}", "all" if sigma is None else f"{sigma:.3g}", f"{sum(within)}/{len(within)}",
            ", ".join(f"{sum(k)}/{len(k)}" for k in kinds),
            str(sum(r["estimate"] == 0 for r in chosen)), *quality,
            f"{np.mean([r['seconds'] for r in chosen]):.3f}",
        ])  # fmt: skip
    return markdown_table(HEADER, rows)


def main(
    store: Annotated[Path, typer.Argument(help="A store.")],
    method: Annotated[str, typer.Option(help=f"{', '.join(ESTIMATORS)}.")] = "pca",
    tols: Annotated[str, typer.Option(help="Tolerances, comma-separated.")] = "0.05,0.02,0.01",
    each: Annotated[int, typer.Option(help="Queries of each kind per level.", min=1)] = 4,
    others: Annotated[Path | None, typer.Option(help="A store of images not in it.")] = None,
    index: Annotated[bool | None, typer.Option(help="Search through the store's index.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the queries.")] = 0,
    json: JsonPath = None,
) -> None:
    """Print a table of errors within the tolerance and of the estimates' quality."""
    if method not in ESTIMATORS:
        raise ArgumentError(f"method: got {method!r}, expected one of {', '.join(ESTIMATORS)}")
    check_seed(seed)
    tolerances = parse_numbers("tols", tols)
    for tol in tolerances:
        AdaptiveSchedule(tol, index=index)  # checks the tolerance
    full = create(method, ImageStore.open(store))
    assert isinstance(full, Estimator)
    other_store = None if others is None else ImageStore.open(others)
    if other_store is not None:
        check_others(other_store, full.store, each)
    levels = levels_of(full, other_store, ddim_sigmas(10), each, seed)
    records = measured(full, levels, tolerances, each, index)
    say(*table(records))
    write_json(json, {"method": method, "records": records})


if __name__ == "__main__":
    sys.exit(program("tolerance", main))
