"""Build the shards of a store in parallel, as Ray tasks.

The images keep the order of a single store and are cut into one run per shard, so that row i is the
same image in both. Each shard is built under a temporary name and renamed when complete. After an
interruption or the failure of a machine, another build adds only the missing shards.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from golddiff import __version__
from golddiff.cluster.joining import check_version, connect, ray_package
from golddiff.cluster.listing import NAME, Listing, ShardRecord
from golddiff.estimators.masks import FOLDER as MASKS
from golddiff.sources import open_source
from golddiff.sources.examples import ExampleSource
from golddiff.sources.source import Skipped
from golddiff.sources.source_options import SourceOptions
from golddiff.store.build import build, check_free
from golddiff.store.cache import fingerprint, recorded
from golddiff.store.manifest import VERSION, Manifest
from golddiff.store.opening import is_store
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError, ClusterError, GoldDiffError, SourceError, one_line
from golddiff.system.files import atomic_write, locked
from golddiff.system.folders import lock_of
from golddiff.system.numbers import is_whole

PLAN, SHARD = "build.json", r"shard-\d{5}"
# pathlib reduces "//" to "/"; a scheme has at least two letters, a Windows drive has one.
ADDRESS = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
IMAGES_A_SHARD = 1_000_000


@dataclass(frozen=True)
class Built:
    """The result of :func:`build_shards`."""

    path: Path  # folder that holds the shards and their list
    shards: int  # number of shards
    found: int  # number of shards that existed before
    n: int  # number of images in all shards
    skipped: Skipped  # unreadable images of the shards that were built by this call


def build_shards(
    source: str,
    path: str | Path,
    shards: int | None = None,
    options: SourceOptions | None = None,
    *,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Built:
    """Build a store in shards; calls ``connect`` first if Ray is not initialized.

    Args:
        source: a folder of images, a parquet file or a folder of them, at the same path on every
            machine of the cluster.
        path: the folder to create, on a disk that all machines share. Existing shards are kept if
            the source and its options are the same.
        shards: number of shards, at most one per image; default one per million images.
        options: how to read the source.
        overwrite: delete existing shards, then build all again.
        progress: called with the number of finished shards and the number of all shards.

    Raises:
        ArgumentError: the source cannot be read in parts; the number of shards is invalid; the
            folder holds something else, or shards of another source.
        SourceError: the source, or an image of it, cannot be read.
        StoreError: a shard cannot be written, or an existing one is damaged.
        ClusterError: no cluster is reachable, or a machine runs another version of golddiff.
    """
    if ADDRESS.match(str(path)):
        raise ArgumentError(
            f"path: got the address {path}, expected a folder on a disk that every machine sees; "
            "shards are opened from an object store once they are copied there"
        )
    options = SourceOptions() if options is None else options
    if isinstance(source, str | Path) and is_store(Path(source)):
        raise ArgumentError(
            f"source: {source} is a store, which cannot be read in parts; give what it was made of"
        )
    opened = open_source(source, **vars(options))
    if not isinstance(opened, ExampleSource):
        raise ArgumentError(
            f"source: {opened.info.description} cannot be read in parts; expected a folder of "
            "images or of parquet files, or a parquet file"
        )
    count = -(-opened.total // IMAGES_A_SHARD) if shards is None else shards
    if not is_whole(count) or not 1 <= count <= opened.total:
        raise ArgumentError(
            f"shards: got {shards!r}, expected an integer from 1 to the {opened.total:,} images "
            "there are"
        )
    count, folder = int(count), path_of("path", path)
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    with locked(lock_of(folder), f"path: another process is building {folder}"):
        _prepare_folder(folder, _plan(source, options, opened, count), overwrite)
        return _build(folder, count, opened, progress)


def _build(
    folder: Path, count: int, opened: ExampleSource, progress: Callable[[int, int], None]
) -> Built:
    """Build the shards that ``folder`` lacks, and write the list of all."""
    borders = [opened.total * i // count for i in range(count + 1)]
    sources = {
        folder / f"shard-{i:05d}": opened.part(borders[i], borders[i + 1]) for i in range(count)
    }
    records = {target: _existing_record(target) for target in sources}
    missing = {target: part for target, part in sources.items() if records[target] is None}
    existing, skipped = count - len(missing), Skipped()
    progress(existing, count)
    for done, (target, record, skipped_here) in enumerate(_build_all(missing), existing + 1):
        records[target] = record
        skipped += skipped_here
        progress(done, count)
    complete = [record for record in records.values() if record is not None]
    Listing(complete).write(folder)
    return Built(folder, count, existing, sum(record.n for record in complete), skipped)


def _build_all(sources: dict[Path, ExampleSource]) -> Iterator[tuple[Path, ShardRecord, Skipped]]:
    """Build shards; yields path, record and skipped images of each as it completes."""
    if not sources:
        return
    ray = ray_package()
    if not ray.is_initialized():
        connect()
    task = ray.remote(build_one).options(scheduling_strategy="SPREAD")
    pending = [task.remote(path, source, __version__) for path, source in sources.items()]
    while pending:
        (finished,), pending = ray.wait(pending)
        try:
            yield ray.get(finished)
        except ray.exceptions.RayError as error:
            cause = getattr(error, "cause", None)
            if isinstance(cause, GoldDiffError):
                raise cause from None
            raise ClusterError(f"cluster: {one_line(cause or error, 300)}") from error


def build_one(path: Path, source: ExampleSource, version: str) -> tuple[Path, ShardRecord, Skipped]:
    """Build one shard, as a Ray task; ``version`` is that of the driver's golddiff."""
    try:
        check_version(version)
        # A previous attempt may have died after it renamed the complete shard.
        record = _existing_record(path)
        if record is None:
            build(source, path, overwrite=False, progress=False, factor=False)
            record = _existing_record(path)
        assert record is not None
    except (GoldDiffError, OSError) as error:
        kind = type(error) if isinstance(error, GoldDiffError) else SourceError
        raise kind(f"shard {path.name}: {error}") from error
    return path, record, source.skipped


def _existing_record(path: Path) -> ShardRecord | None:
    """The record of a complete shard; None if it does not exist."""
    if not path.exists():
        return None
    manifest = Manifest.read(path)
    manifest.check_sizes(path)
    return ShardRecord(path.name, manifest.n, manifest.identity)


def _plan(source: str, options: SourceOptions, opened: ExampleSource, shards: int) -> str:
    """The content of ``build.json``: the source and options that determine the shards."""
    info = opened.info
    body = {
        "version": VERSION, "source": os.path.abspath(source), "images": opened.total,
        "shape": list(info.shape), "class_names": info.class_names, "shards": shards,
        "files": fingerprint(Path(source)),
        # A complete shard is the same with and without skip_bad.
        **recorded(replace(options, skip_bad=True)),
    }  # fmt: skip
    digest = hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()
    return json.dumps({"plan": body, "digest": digest}, indent=1) + "\n"


def _is_plan(file: Path) -> bool:
    try:
        body = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(body, dict) and {*body} == {"plan", "digest"}


def _prepare_folder(folder: Path, plan: str, overwrite: bool) -> None:
    """Create the folder; existing shards must have the same plan, unless overwritten."""
    file = folder / PLAN
    if folder.exists() and any(folder.iterdir()):
        if not _is_plan(file):
            raise ArgumentError(
                f"path: {folder} exists already and holds no shards; give another path"
            )
        if overwrite:
            parts = [p for p in folder.iterdir() if re.fullmatch(SHARD, p.name)]
            for part in parts:
                check_free(part, overwrite)
            for part in (*parts, *folder.glob(".shard-*.building-*")):
                shutil.rmtree(part)
            for derived in (folder / NAME, *folder.glob("*.safetensors")):
                derived.unlink(missing_ok=True)
            shutil.rmtree(folder / MASKS, ignore_errors=True)
        elif file.read_text(encoding="utf-8") != plan:
            raise ArgumentError(
                f"path: {folder} holds shards of another source, of one that has changed, or of "
                "other options; give another path, or overwrite=True"
            )
    with atomic_write("path", file) as temporary:
        temporary.write_text(plan, encoding="utf-8")
