"""``golddiff evaluate``: methods against a neural oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.evaluate_run import EvaluateJob, run_evaluate
from golddiff.cli.options import (
    BoundaryRule,
    JsonPath,
    KMax,
    KMin,
    MaskThreshold,
    MMax,
    MMin,
    PatchSize,
    Tol,
    Variant,
    Weighting,
    method_settings,
)
from golddiff.registry import METHODS


def evaluate(
    store: Annotated[Path, typer.Argument(help="A store that golddiff index made.")],
    oracle: Annotated[
        Path, typer.Option(help="The network's weights: a file or a folder.", metavar="PATH")
    ],
    method: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Repeat for several: {', '.join(METHODS)}. Default golddiff-pca.",
            show_default=False,
        ),
    ] = None,
    n: Annotated[int, typer.Option("--n", help="How many images; the paper's 128.")] = 128,
    steps: Annotated[int, typer.Option(help="Denoising steps, 1 to 1000.")] = 10,
    sampler: Annotated[str, typer.Option(help="ddim or heun.")] = "ddim",
    oracle_sampler: Annotated[
        str | None,
        typer.Option(
            help="The oracle's sampler, where it is another than the methods'.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the starting noise and the random picks.")] = 0,
    labels: Annotated[
        str | None,
        typer.Option(help="Only these classes, on both sides: one (3), or in turn (0,1,2)."),
    ] = None,
    batch: Annotated[int, typer.Option(help="Images denoised together.")] = 16,
    single_step: Annotated[
        bool,
        typer.Option(
            "--single-step/--no-single-step",
            help="Also the error of each step alone, at the oracle's states; takes as long again.",
        ),
    ] = True,
    json: JsonPath = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="A folder for evaluation.json, curves.png and images.png.", show_default=False
        ),
    ] = None,
    mask_threshold: MaskThreshold = None,
    weighting: Weighting = None,
    patch_size: PatchSize = None,
    boundary: BoundaryRule = None,
    variant: Variant = None,
    k_min: KMin = None,
    k_max: KMax = None,
    m_min: MMin = None,
    m_max: MMax = None,
    tol: Tol = None,
) -> None:
    """Compare methods with a neural oracle: the same noise, MSE and r2 image by image.

    For example:

      golddiff evaluate cifar.store --oracle cifar-oracle/ --method pca --method golddiff-pca

      golddiff evaluate mnist.store --oracle mnist-oracle/ --n 16 --out compared/
    """
    settings = method_settings(
        mask_threshold,
        weighting,
        patch_size,
        boundary,
        variant,
        k_min,
        k_max,
        m_min,
        m_max,
        tol,
    )
    run_evaluate(
        EvaluateJob(
            store, oracle, tuple(method or ["golddiff-pca"]), settings, n, steps, sampler,
            oracle_sampler or sampler, seed, labels, batch, single_step, json, out,
        )
    )  # fmt: skip
