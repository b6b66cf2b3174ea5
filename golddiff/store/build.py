"""Building a store: one streaming pass into a hidden folder, renamed when complete."""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from golddiff.kernels.stored import Stored
from golddiff.sources.source import Rows, Source, SourceInfo
from golddiff.store.artifacts import Artifacts
from golddiff.store.factors import BUILT as FACTOR
from golddiff.store.manifest import FILE_NAMES, FileRecord, Manifest, file_record, identity_of
from golddiff.store.needs import check_images
from golddiff.store.proxy import pool, quarter_shape
from golddiff.store.statistics import covariance_factor
from golddiff.system.errors import ArgumentError, SourceError, printable
from golddiff.system.files import check_disk
from golddiff.system.folders import folder_in_place
from golddiff.system.progress import progress_bar
from golddiff.system.residency import DEFAULT_LIMIT, Residency

PIXELS, LABELS, PROXIES, NORMS = "pixels.bin", "labels.bin", "proxies.bin", "norms.bin"
# Above this many values an image the factor takes minutes and gigabytes, and Optimal, Kamb and
# their golden subsets do not need it: it is made when first asked for.
FACTOR_AT_BUILD = 4096

BATCH, BATCH_BYTES = 512, 1 << 25  # images read together, and bytes of them
# Copies of a batch at a time: read ahead, cut into batches, and as float32.
COPIES = 16


def build(
    source: Source, path: Path, *, overwrite: bool, progress: bool, factor: bool = True
) -> None:
    """Write ``source``, read once from start to end, as a store at ``path``.

    With mean and covariance (``factor``) where images are small; a shard needs none of its own.
    """
    _check_free(path, overwrite)
    if path.exists() and not (path / "manifest.json").is_file():
        raise ArgumentError(f"path: {path} is not a golddiff store, so it is not overwritten")
    info = source.info
    if info.count is not None:  # refused before the work starts, where the disk is too small
        proxies = 4 * math.prod(quarter_shape(info.shape))
        check_disk("the store", path, info.count * (_bytes_each(info) + proxies + 12))
    check_images(1, info.shape, lambda n, d: COPIES * (BATCH_BYTES + 4.0 * d), "to read")
    busy = f"the store: another process is building {path}; wait for it, or give another path"
    with folder_in_place("the store", path, busy) as folder, progress_bar(progress) as bar:
        _check_free(path, overwrite)  # built by another since it was looked for
        _fill(folder, source, bar, factor)


def is_store_of(path: Path, source: Source) -> bool:
    """Whether a store holds what a source says of itself, and, of arrays, their very values.

    Encoded images are not decoded for this: files that changed in place count as the same.
    """
    manifest, said = Manifest.read(path), _unfilled(source.info)
    same = ("shape", "dtype", "labelled", "class_names", "source")
    if any(getattr(manifest, name) != getattr(said, name) for name in same):
        return False
    if source.info.count not in (None, manifest.n):
        return False
    if not isinstance(source, Rows):
        labels = getattr(source, "labels", None)  # where they are known before it is read
        if labels is None or source.info.count is None:
            return True
        digest = hashlib.sha256(labels[: manifest.n].astype(np.int64).data)
        return manifest.files[LABELS].sha256 == digest.hexdigest()
    digests = {PIXELS: hashlib.sha256(), LABELS: hashlib.sha256()}
    for pixels, labels in source.batches(BATCH):
        digests[PIXELS].update(np.ascontiguousarray(pixels).data)
        digests[LABELS].update(b"" if labels is None else labels.data)
    return all(
        manifest.files[name].sha256 == digest.hexdigest()
        for name, digest in digests.items()
        if name in manifest.files
    )


def _unfilled(info: SourceInfo) -> Manifest:
    """The manifest of a source of which no image was read yet."""
    names = None if info.class_names is None else [printable(name) for name in info.class_names]
    return Manifest(
        0, info.shape, info.dtype.name, info.labelled, names, quarter_shape(info.shape),
        printable(info.description),
    )  # fmt: skip


def _fill(folder: Path, source: Source, bar: Progress, with_factor: bool) -> None:
    info = source.info
    manifest = _unfilled(info)
    scale, offset = map(np.float32, manifest.scaling)
    # Of images that may be left out the number is not known, but how many are read.
    total = getattr(source, "total", info.count)
    task = bar.add_task(f"reading {manifest.source}", total=total)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context((folder / name).open("wb"))
            for name in (PIXELS, PROXIES, NORMS, *([LABELS] if info.labelled else []))
        }
        # Now, so that large files are not read once more.
        digests = {name: hashlib.sha256() for name in files}
        size = max(1, min(BATCH, BATCH_BYTES // _bytes_each(info)))
        for pixels, labels in source.batches(size):
            values = pixels.astype(np.float32)
            if pixels.dtype == np.uint8:
                values = values * scale + offset
            flat = values.reshape(len(values), -1)
            made: dict[str, NDArray[Any]] = {
                PIXELS: pixels,
                PROXIES: pool(values, manifest.proxy_shape),
                NORMS: np.sqrt(np.einsum("nd,nd->n", flat, flat, dtype=np.float32)),
            }
            if labels is not None:
                made[LABELS] = labels.astype(np.int64)
            for name, array in made.items():
                data = np.ascontiguousarray(array).data
                files[name].write(data)
                digests[name].update(data)
            manifest.n += len(pixels)
            bar.update(task, completed=manifest.n)
        if manifest.n == 0:
            raise SourceError(f"source: {info.description} holds no images")
        for name, file in files.items():
            file.flush()
            os.fsync(file.fileno())
            manifest.files[name] = FileRecord(file.tell(), digests[name].hexdigest())
    # A table may give all its images one name.
    if len(source.names) == manifest.n and (manifest.n == 1 or len(set(source.names)) > 1):
        named = folder / FILE_NAMES
        named.write_text("".join(f"{printable(n)}\n" for n in source.names), encoding="utf-8")
        manifest.files[FILE_NAMES] = file_record(named)
    manifest.skipped = len(source.skipped)
    if with_factor and math.prod(info.shape) <= FACTOR_AT_BUILD:
        _write_factor(folder, manifest, bar)
    manifest.write(folder)


def _write_factor(folder: Path, manifest: Manifest, bar: Progress) -> None:
    n, d = manifest.n, math.prod(manifest.shape)
    task = bar.add_task("covariance", total=n)
    flat = Residency(DEFAULT_LIMIT).map(folder / PIXELS, manifest.dtype, (n, d))
    stored = Stored(flat, *manifest.scaling)
    factor = covariance_factor(stored, progress=lambda i: bar.update(task, completed=i))
    artifacts = Artifacts(folder, identity_of(manifest))
    path = artifacts.path(FACTOR)
    path.write_bytes(artifacts.body(factor.tensors(), {"of": str(factor.images)}))
    manifest.files[path.name] = file_record(path)


def _check_free(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise ArgumentError(f"path: {path} exists already; give another path, or overwrite=True")


def _bytes_each(info: SourceInfo) -> int:
    return math.prod(info.shape) * (1 if info.dtype == np.uint8 else 4)
