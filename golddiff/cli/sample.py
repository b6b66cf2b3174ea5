"""``golddiff sample``: generate images."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.options import (
    BoundaryRule,
    Channels,
    Cluster,
    Column,
    JsonPath,
    KMax,
    KMin,
    LabelColumn,
    Limit,
    MaskThreshold,
    MMax,
    MMin,
    Novelty,
    PatchSize,
    Size,
    SkipBadByDefault,
    Split,
    Tol,
    Variant,
    Weighting,
    method_settings,
)
from golddiff.cli.sample_run import SampleJob, run_sample
from golddiff.registry import DEFAULT_METHOD, METHODS
from golddiff.store.cache import SourceOptions


def sample(
    data: Annotated[
        str | None,
        typer.Option(
            help="Training images: folder, file, built-in (digits, moons, patches) or hub name. "
            "Indexed once in a cache ($GOLDDIFF_CACHE, ~/.cache/golddiff). Default digits.",
            show_default=False,
        ),
    ] = None,
    store: Annotated[
        str | None, typer.Option(help="A store that golddiff index made, instead of --data.")
    ] = None,
    cluster: Cluster = None,
    allow_missing: Annotated[
        bool,
        typer.Option(
            "--allow-missing", help="With --cluster: go on without shards that cannot come back."
        ),
    ] = False,
    method: Annotated[str, typer.Option(help=", ".join(METHODS) + ".")] = DEFAULT_METHOD,
    n: Annotated[int, typer.Option("--n", help="How many images.")] = 16,
    steps: Annotated[int, typer.Option(help="Denoising steps, 1 to 1000.")] = 10,
    sampler: Annotated[str, typer.Option(help="ddim or heun.")] = "ddim",
    seed: Annotated[int, typer.Option(help="Of the starting noise and the random picks.")] = 0,
    labels: Annotated[
        str | None,
        typer.Option(help="Only these classes: one for all images (3), or in turn (0,1,2)."),
    ] = None,
    out: Annotated[Path, typer.Option(help="The picture: .png, .jpg or .webp.")] = Path("grid.png"),
    trajectory: Annotated[
        Path | None, typer.Option(help="A second picture: what each step predicts.")
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(
            help="A web page that shows which training images each output is made of.",
            metavar="PATH.html",
            show_default=False,
        ),
    ] = None,
    json: JsonPath = None,
    batch_size: Annotated[int, typer.Option(help="Images denoised together.")] = 64,
    threads: Annotated[
        int | None, typer.Option(help="Threads to use; default: all cores.", show_default=False)
    ] = None,
    novelty: Novelty = None,
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
    size: Size = None,
    channels: Channels = None,
    split: Split = None,
    column: Column = None,
    label_column: LabelColumn = None,
    skip_bad: SkipBadByDefault = True,
    limit: Limit = None,
) -> None:
    """Generate images from noise, and draw them as one picture.

    For example:

      golddiff sample

      golddiff sample --data photos/ --size 64 --n 64 --novelty 0.5 --out grid.png

      golddiff sample --store cifar.store --method pca --labels 3 --json run.json

      golddiff sample --n 8 --explain report.html

      golddiff sample --data moons --method optimal --n 500 --trajectory paths.png

      golddiff sample --cluster head:6379 --store shards/ --method golddiff-pca
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
        novelty,
    )
    reading = SourceOptions(size, channels, split or "train", column, label_column, skip_bad, limit)
    run_sample(
        SampleJob(
            data, store, reading, method, settings, n, steps, sampler, seed, labels,
            batch_size, threads, out, trajectory, explain, json, cluster, allow_missing,
        )
    )  # fmt: skip
