"""``golddiff index``: build a store."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.index_cluster import index_on_cluster
from golddiff.cli.options import (
    Channels,
    Cluster,
    Column,
    JsonPath,
    LabelColumn,
    Limit,
    Size,
    SkipBad,
    Split,
)
from golddiff.cli.summary import describe, summary
from golddiff.cli.terminal import say, watched, write_json
from golddiff.errors import ArgumentError
from golddiff.sources.source_options import SourceOptions
from golddiff.system.files import check_writable
from golddiff.system.units import duration


def index(
    source: Annotated[
        str,
        typer.Argument(
            help="A folder of images, a parquet, zip, npz, npy, idx or CIFAR file, a built-in "
            "(digits, moons, patches), the name of a dataset on the Hugging Face hub, a store, or "
            "enlarged:SOURCE (with --limit: its images and changed copies of them)."
        ),
    ],
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    size: Size = None,
    channels: Channels = None,
    split: Split = None,
    column: Column = None,
    label_column: LabelColumn = None,
    skip_bad: SkipBad = False,
    limit: Limit = None,
    seed: Annotated[int, typer.Option(help="Of moons, patches and enlarged sets.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a store that is there already.")
    ] = False,
    cluster: Cluster = None,
    shards: Annotated[
        int | None,
        typer.Option(
            help="With --cluster: how many shards; default one for each million images. A build "
            "that was interrupted goes on with those that are missing.",
            show_default=False,
        ),
    ] = None,
    json: JsonPath = None,
) -> None:
    """Build a store: read a training set once, keep it as one folder ready for sampling.

    For example:

      golddiff index photos/ photos.store --size 64

      golddiff index train.parquet cifar.store --label-column label

      golddiff index digits digits.store

      golddiff index enlarged:imagenet64.store million.store --limit 1280000

      golddiff index /nfs/photos /nfs/photos.shards --size 64 --cluster head:6379 --shards 400
    """
    if json is not None:
        check_writable("json", json)
    if shards is not None and cluster is None:
        raise ArgumentError("shards: applies to --cluster only")
    if cluster is not None:
        options = SourceOptions(
            size, channels, split or "train", column, label_column, skip_bad, limit, seed
        )
        index_on_cluster(source, out, cluster, shards, options, overwrite, json)
        return

    from golddiff.store.build import build
    from golddiff.store.images import ImageStore
    from golddiff.store.opening import open_source

    start = time.perf_counter()
    opened = open_source(
        source, size=size, channels=channels, split=split or "train", column=column,
        label_column=label_column, skip_bad=skip_bad, limit=limit, seed=seed,
    )  # fmt: skip
    build(opened, out, overwrite=overwrite, progress=watched())
    seconds = time.perf_counter() - start
    store = ImageStore.open(out)
    say(f"{describe(store)} in {duration(seconds)}")
    skipped = opened.skipped
    for line in skipped.lines():
        say(line)
    if json is not None:
        names = [
            {"name": name, "reason": reason}
            for name, reason in zip(skipped.names, skipped.reasons, strict=True)
        ]
        write_json(json, {**summary(store), "seconds": seconds, "skipped_images": names})
