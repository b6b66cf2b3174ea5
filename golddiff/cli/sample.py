"""The options of ``golddiff sample``."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.options import (
    BatchSize,
    Cluster,
    JsonPath,
    Labels,
    MethodName,
    ReadingOptions,
    SamplerName,
    Seed,
    Steps,
    Threads,
    advanced,
)
from golddiff.estimators.registry import DEFAULT_METHOD, MethodSettings


@dataclass(frozen=True)
class SampleJob:
    """The options of ``golddiff sample``."""

    data: Annotated[
        str | None,
        typer.Option(
            help="Training images: folder, file, built-in (digits, moons, patches) or hub name. "
            "Indexed once in a cache ($GOLDDIFF_CACHE, ~/.cache/golddiff). Default: patches of two "
            "photographs.",
            show_default=False,
        ),
    ] = None
    store: Annotated[
        str | None, typer.Option(help="A store that golddiff index made, instead of --data.")
    ] = None
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    method: MethodName = DEFAULT_METHOD
    settings: MethodSettings = field(default_factory=MethodSettings)
    n: Annotated[int, typer.Option("--n", help="How many images.")] = 16
    steps: Steps = 10
    seed: Seed = 0
    labels: Labels = None
    start: Annotated[
        Path | None,
        typer.Option(
            help="A picture to begin from, in place of pure noise.",
            metavar="PICTURE", show_default=False,
        ),
    ] = None  # fmt: skip
    strength: Annotated[
        float, typer.Option(help="With --start: how much of it is noise, above 0 to 1.")
    ] = 0.6
    out: Annotated[
        Path,
        typer.Option(
            help="The picture: .png, .jpg or .webp; .npz for arrays; a folder for each image by "
            "itself too."
        ),
    ] = Path("grid.png")
    explain: Annotated[
        Path | None,
        typer.Option(
            help="A web page that shows which training images each output is made of.",
            metavar="PATH.html",
            show_default=False,
        ),
    ] = None
    json: JsonPath = None
    trajectory: Annotated[Path | None, advanced("A second picture: what each step predicts.")] = (
        None
    )
    sampler: SamplerName = "ddim"
    batch_size: BatchSize = 64
    threads: Threads = None
    cluster: Cluster = None
    allow_missing: Annotated[
        bool,
        advanced("With --cluster: go on without shards that cannot come back.", "--allow-missing"),
    ] = False
