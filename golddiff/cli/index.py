"""``golddiff index``: build a store on this machine, or in shards on a cluster."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import golddiff
from golddiff.cli.cluster import join
from golddiff.cli.command import ADVANCED, argument, command, option
from golddiff.cli.options import Cluster, JsonPath, ReadingOptions, check_apart
from golddiff.cli.terminal import describe, say, starting, summary, waiting, write_json
from golddiff.sources.source_options import SourceOptions
from golddiff.store.manifest import Manifest
from golddiff.system.errors import ArgumentError
from golddiff.system.units import byte_size, counted, duration, shape_text

if TYPE_CHECKING:
    from golddiff.sources.source import Skipped


@dataclass(frozen=True)
class _IndexOptions:
    source: str = argument(
        "A folder of images; a parquet, zip, npz, npy, idx or CIFAR file; a built-in set "
        "(digits, moons, patches); the name of a dataset on the Hugging Face hub; or a store."
    )
    out: Path = argument("The folder to create for the store.")
    reading: ReadingOptions = field(default_factory=ReadingOptions)
    seed: int = option("Seed of the built-in sets moons and patches.", 0, panel=ADVANCED)
    overwrite: bool = option("Replace an existing store.", False)
    cluster: Cluster = None
    shards: int | None = option(
        "With --cluster: number of shards; default: one per million images. An interrupted "
        "build continues with the missing shards.",
        None,
        panel=ADVANCED,
    )
    json: JsonPath = None


@command
def index(options: _IndexOptions) -> None:
    """Build a store: read a training set once and save it as a folder, ready for sampling.

    For example:

      golddiff index photos/ photos.store --size 64
      golddiff index train.parquet cifar.store --label-column label
      golddiff index digits digits.store
      golddiff index /nfs/photos /nfs/photos.shards --size 64 --cluster head:6379 --shards 400
    """
    if options.shards is not None and options.cluster is None:
        raise ArgumentError("shards: applies to --cluster only")
    check_apart("json", options.json, options.source)
    build = _build_locally if options.cluster is None else _build_on_cluster
    start = time.perf_counter()
    line, skipped, figures = build(options)
    seconds = time.perf_counter() - start
    say(f"{line} in {duration(seconds)}")
    for note in skipped.lines():
        say(note)
    names = [{"name": name, "reason": reason} for name, reason in skipped]
    write_json(options.json, {**figures, "seconds": seconds, "skipped_images": names})


def _build_locally(options: _IndexOptions) -> tuple[str, Skipped, dict[str, Any]]:
    """Build a store; returns a description, the skipped images and the results for JSON."""
    starting()
    from golddiff.store.build import build, check_free
    from golddiff.store.opening import open_source

    check_free(options.out, options.overwrite)
    opened = open_source(options.source, seed=options.seed, **options.reading.given())
    build(opened, options.out, overwrite=options.overwrite, progress=True)
    store = golddiff.ImageStore.open(options.out)
    return describe(store), opened.skipped, summary(store)


def _build_on_cluster(options: _IndexOptions) -> tuple[str, Skipped, dict[str, Any]]:
    """Build a sharded store; see :func:`_build_locally`."""
    from golddiff.cluster.listing import Listing

    assert options.cluster is not None
    reading = SourceOptions(seed=options.seed, **options.reading.given())
    join(options.cluster)
    with waiting("building the shards") as watch:
        built = golddiff.cluster.build_shards(
            options.source, options.out, options.shards, reading,
            overwrite=options.overwrite, progress=watch,
        )  # fmt: skip
    before = f", {built.found:,} of them already built" if built.found else ""
    manifests = [Manifest.read(Path(path)) for path in Listing.of(options.out).paths]
    size, left_out = sum(m.bytes for m in manifests), sum(m.skipped for m in manifests)
    skipped = f", {counted(left_out, 'unreadable image')} left out" if left_out else ""
    line = (
        f"{options.out}: {built.n:,} images, {shape_text(manifests[0].shape)}, in "
        f"{counted(built.shards, 'shard')}{before}, {byte_size(size)}{skipped}"
    )
    figures = {
        "path": str(built.path), "n": built.n, "shards": built.shards, "found": built.found,
        "shape": list(manifests[0].shape), "bytes": size, "skipped": left_out,
    }  # fmt: skip
    return line, built.skipped, figures
