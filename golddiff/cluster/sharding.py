"""Building the shards of a store in parallel, each at most once, as Ray tasks.

The images are cut into as many runs as there are shards, in the order in which a single store would
have them, so that row i is the same image in both. Ray hands the runs to the cluster's cores.
Each shard is built under another name and renamed when complete; a build that was interrupted, or
whose machines died, goes on with the shards that are not there yet.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from golddiff import __version__
from golddiff.cluster.joining import connect, ray_package
from golddiff.cluster.listing import NAME, Listing, ShardRecord
from golddiff.estimators.kept_masks import FOLDER as MASKS
from golddiff.sources.examples import ExampleSource
from golddiff.sources.source import Skipped
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import recorded
from golddiff.store.manifest import VERSION, Manifest, identity_of
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError, ClusterError, GoldDiffError, SourceError, one_line
from golddiff.system.files import written_whole
from golddiff.system.numbers import is_whole

PLAN = "build.json"
# A path as pathlib writes it has one slash; a drive has one letter.
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
IMAGES_A_SHARD = 1_000_000


@dataclass(frozen=True)
class Built:
    """What :func:`build_shards` did."""

    path: Path  # the folder, which holds the list of shards
    shards: int  # how many there are
    found: int  # how many were there already
    n: int  # images in all of them
    skipped: Skipped  # images that could not be read, of those shards that were built now


def build_shards(
    source: str,
    path: str | Path,
    shards: int | None = None,
    options: SourceOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Built:
    """Build a store in shards; connects to Ray first where that was not done (``connect``).

    Args:
        source: a folder of images, a parquet file or a folder of them, which every machine of the
            cluster sees under this path.
        path: the folder to make, on a disk that every machine sees. Shards that are there already
            are kept, if the source and its options are the same.
        shards: how many; default one for each million images. At most one for each image.
        options: how the source is read.
        overwrite: build all of them again.
        progress: called with the number of shards that are there and of all.

    Raises:
        ArgumentError: a source that cannot be read in parts; a bad number of shards; a folder
            that holds something else, or shards of another source.
        SourceError: the source, or an image of it, cannot be read.
        StoreError: a shard cannot be written, or one that is there is damaged.
        ClusterError: no cluster, or another version of golddiff on one of its machines.
    """
    from golddiff.sources import open_source

    if ADDRESS.match(str(path)):
        raise ArgumentError(
            f"path: got the address {path}, expected a folder on a disk that every machine sees; "
            "shards are opened from an object store once they are copied there"
        )
    options = SourceOptions() if options is None else options
    opened = open_source(source, **vars(options))
    if not isinstance(opened, ExampleSource):
        raise ArgumentError(
            f"source: {opened.info.description} cannot be read in parts; expected a folder of "
            "images or of parquet files, or a parquet file"
        )
    number = -(-opened.total // IMAGES_A_SHARD) if shards is None else shards
    if not is_whole(number) or not 1 <= number <= opened.total:
        raise ArgumentError(
            f"shards: got {shards!r}, expected an integer from 1 to the {opened.total:,} images "
            "there are"
        )
    number, folder = int(number), path_of("path", path)
    _prepare(folder, _plan(source, options, opened, number), overwrite)
    borders = [opened.total * i // number for i in range(number + 1)]
    sources = {
        folder / f"shard-{i:05d}": opened.part(borders[i], borders[i + 1]) for i in range(number)
    }
    records = {place: _found(place) for place in sources}
    missing = {place: part for place, part in sources.items() if records[place] is None}
    found, skipped = number - len(missing), Skipped()
    progress(found, number)
    for done, (place, record, left_out) in enumerate(_built(missing), found + 1):
        records[place] = record
        skipped += left_out
        progress(done, number)
    whole = [record for record in records.values() if record is not None]
    Listing(whole).write(folder)
    return Built(folder, number, found, sum(record.n for record in whole), skipped)


def _built(sources: dict[Path, ExampleSource]) -> Iterator[tuple[Path, ShardRecord, Skipped]]:
    """Path, record and images left out of each shard, as they come."""
    if not sources:
        return
    ray = ray_package()
    if not ray.is_initialized():
        connect()
    task = ray.remote(build_one).options(scheduling_strategy="SPREAD")
    left = [task.remote(path, source, __version__) for path, source in sources.items()]
    while left:
        (done,), left = ray.wait(left)
        try:
            yield ray.get(done)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, GoldDiffError):
                raise cause from None
            raise ClusterError(f"cluster: {one_line(cause or error)[:300]}") from error


def build_one(path: Path, source: ExampleSource, version: str) -> tuple[Path, ShardRecord, Skipped]:
    """Build one shard, on whatever machine this runs; ``version`` is the driver's golddiff."""
    from golddiff.store.build import build

    try:
        if version != __version__:
            raise ClusterError(
                f"golddiff {__version__} runs on {socket.gethostname()}, the driver's is "
                f"{version}; install one version everywhere"
            )
        # Whoever built it before may have died after the renaming.
        record = _found(path)
        if record is None:
            build(source, path, overwrite=False, progress=False, factor=False)
            record = _found(path)
        assert record is not None
    except (GoldDiffError, OSError) as error:
        kind = type(error) if isinstance(error, GoldDiffError) else SourceError
        raise kind(f"shard {path.name}: {error}") from error
    return path, record, source.skipped


def _found(path: Path) -> ShardRecord | None:
    """The record of a shard that is there and whole, or None."""
    if not path.exists():
        return None
    manifest = Manifest.read(path)
    manifest.check_sizes(path)
    return ShardRecord(path.name, manifest.n, identity_of(manifest))


def _plan(source: str, options: SourceOptions, opened: ExampleSource, shards: int) -> str:
    """What the shards are made of; another plan means other shards."""
    info = opened.info
    body = {
        "version": VERSION, "source": os.path.abspath(source), "images": opened.total,
        "shape": list(info.shape), "class_names": info.class_names, "shards": shards,
        **recorded(options),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({"plan": body, "digest": digest}, indent=1) + "\n"


def _prepare(folder: Path, plan: str, overwrite: bool) -> None:
    """Make the folder, or check that what lies in it is of the same plan."""
    file = folder / PLAN
    if folder.exists() and any(folder.iterdir()):
        if not file.is_file():
            raise ArgumentError(
                f"path: {folder} exists already and holds no shards; give another path"
            )
        if overwrite:
            for part in (*folder.glob("shard-*"), *folder.glob(".shard-*.building-*")):
                shutil.rmtree(part)
            for kept in (folder / NAME, *folder.glob("*.safetensors")):
                kept.unlink(missing_ok=True)
            shutil.rmtree(folder / MASKS, ignore_errors=True)
        elif file.read_text(encoding="utf-8") != plan:
            raise ArgumentError(
                f"path: {folder} holds shards of another source or of other options; give another "
                "path, or overwrite=True"
            )
    with written_whole("path", file) as temporary:
        temporary.write_text(plan, encoding="utf-8")
