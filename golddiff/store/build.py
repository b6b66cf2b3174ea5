"""Builds a store in one streaming pass, in a hidden folder that is renamed when complete."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.progress import Progress

from golddiff.kernels.stored import Stored
from golddiff.sources.source import Source, SourceInfo
from golddiff.store.artifacts import Artifacts
from golddiff.store.factors import BUILT as FACTOR
from golddiff.store.manifest import FILE_NAMES, FORMAT, FileRecord, Manifest, file_record
from golddiff.store.manifest import NAME as MANIFEST
from golddiff.store.needs import check_images
from golddiff.store.proxy import pool, quarter_shape
from golddiff.store.queries import MAX_NORM
from golddiff.store.statistics import LARGE, covariance_factor
from golddiff.system.errors import ArgumentError, SourceError, printable
from golddiff.system.files import check_disk
from golddiff.system.folders import folder_in_place
from golddiff.system.numbers import F32
from golddiff.system.progress import progress_bar
from golddiff.system.residency import DEFAULT_LIMIT, Residency

log = logging.getLogger("golddiff")

PIXELS, LABELS, PROXIES, NORMS = "pixels.bin", "labels.bin", "proxies.bin", "norms.bin"

BATCH, BATCH_BYTES = 512, 1 << 25  # largest batch, in images and in bytes
# Copies of a batch in memory at once: read ahead, sliced into batches, and converted to float32.
COPIES = 16
# The files of a store and of its index.
ENDINGS, NAMES = (".bin", ".safetensors"), (MANIFEST, FILE_NAMES, "index.json")


def build(
    source: Source, path: Path, *, overwrite: bool, progress: bool, factor: bool = True
) -> None:
    """Read ``source`` once, in order, and write it as a store at ``path``.

    ``factor`` adds the mean and covariance if images are small; shards do not need their own.
    """
    info = source.info
    proxies = 4 * math.prod(quarter_shape(info.shape))
    d = math.prod(info.shape)
    covariance = 8 * d * min(source.total, d) if factor and d <= LARGE else 0
    total = source.total * (_image_bytes(info) + proxies + 12) + covariance
    check_disk("the store", path, total)
    check_images(1, info.shape, lambda n, d: COPIES * (BATCH_BYTES + 4.0 * d), "to read")
    busy = f"the store: another process is building {path}; wait for it, or give another path"
    with folder_in_place("the store", path, busy) as folder, progress_bar(progress) as bar:
        check_free(path, overwrite)  # callers check before they open the source, too
        _write_store(folder, source, bar, factor)


def _write_store(folder: Path, source: Source, bar: Progress, with_factor: bool) -> None:
    info = source.info
    names = None if info.class_names is None else [printable(name) for name in info.class_names]
    manifest = Manifest(
        0, info.shape, info.dtype.name, info.labelled, info.is_pixels, names,
        quarter_shape(info.shape), printable(info.description),
    )  # fmt: skip
    scale, offset = map(np.float32, manifest.scaling)
    squares = 0.0  # sum of all squared values
    task = bar.add_task(f"reading {manifest.source}", total=source.total)
    with contextlib.ExitStack() as stack:
        files = {
            name: stack.enter_context((folder / name).open("wb"))
            for name in (PIXELS, PROXIES, NORMS, *([LABELS] if info.labelled else []))
        }
        # Computed while writing, so that large files are not read again.
        digests = {name: hashlib.sha256() for name in files}
        size = max(1, min(BATCH, BATCH_BYTES // _image_bytes(info)))
        for pixels, labels in source.batches(size):
            values = pixels.astype(np.float32)
            if pixels.dtype == np.uint8:
                values = values * scale + offset
            flat = values.reshape(len(values), -1)
            norms = _lengths(flat)
            squares += float(np.square(norms, dtype=np.float64).sum())
            arrays: dict[str, NDArray[Any]] = {
                PIXELS: pixels,
                PROXIES: pool(values, manifest.proxy_shape),
                NORMS: norms,
            }
            if labels is not None:
                arrays[LABELS] = labels.astype(np.int64)
            for name, array in arrays.items():
                data = np.ascontiguousarray(array).data
                files[name].write(data)
                digests[name].update(data)
            manifest.n += len(pixels)
            bar.update(task, completed=manifest.n)
        if manifest.n == 0:
            raise SourceError(f"source: {info.description} holds no images")
        rms = math.sqrt(squares / manifest.n / math.prod(info.shape))
        if info.dtype != np.uint8 and not 0.01 <= rms <= 100:
            log.warning(
                "%s: the values' root mean square is %.2g, and samples are good only near 1: give "
                "value_range=(least, largest) for pixels, or scale the values",
                manifest.source, rms,
            )  # fmt: skip
        for name, file in files.items():
            file.flush()
            os.fsync(file.fileno())
            manifest.files[name] = FileRecord(file.tell(), digests[name].hexdigest())
    # A table may give all its images the same name, which is not worth saving.
    if len(source.names) == manifest.n and (manifest.n == 1 or len(set(source.names)) > 1):
        file_names = folder / FILE_NAMES
        lines = "".join(f"{printable(name)}\n" for name in source.names)
        file_names.write_text(lines, encoding="utf-8")
        manifest.files[FILE_NAMES] = file_record(file_names)
    manifest.skipped = len(source.skipped)
    # The factor of larger images takes minutes and gigabytes. It is computed on first use, because
    # Optimal, Kamb and their golden subsets do not need it.
    if with_factor and math.prod(info.shape) <= LARGE:
        _write_factor(folder, manifest, bar)
    manifest.write(folder)


def _lengths(values: F32) -> F32:
    """The norms (n,) of images (n, D), rounded up, because bounds proved with R rely on them."""
    norms = np.sqrt(np.einsum("nd,nd->n", values, values, dtype=np.float64))
    if norms.max() > MAX_NORM:
        raise SourceError(
            f"source: an image has norm {norms.max():.2g}, expected at most {MAX_NORM:g}"
        )
    return np.nextafter(norms.astype(np.float32), np.float32(np.inf))


def _write_factor(folder: Path, manifest: Manifest, bar: Progress) -> None:
    n, d = manifest.n, math.prod(manifest.shape)
    task = bar.add_task("covariance", total=n)
    flat = Residency(DEFAULT_LIMIT).map(folder / PIXELS, manifest.dtype, (n, d))
    stored = Stored(flat, *manifest.scaling)
    factor = covariance_factor(stored, progress=lambda i: bar.update(task, completed=i))
    artifacts = Artifacts(folder, manifest.identity)
    path = artifacts.path(FACTOR)
    path.write_bytes(artifacts.body(factor.tensors(), {"of": str(factor.images)}))
    manifest.files[path.name] = file_record(path)


def check_free(path: Path, overwrite: bool) -> None:
    """Raise ArgumentError if something is at ``path`` that a new store must not replace."""
    if not path.exists():
        return
    if not overwrite:
        raise ArgumentError(f"path: {path} exists already; give another path, or overwrite=True")
    manifest = path / MANIFEST
    is_ours = manifest.is_file() and (
        (path / PIXELS).is_file() or FORMAT.encode() in manifest.read_bytes()[:99]
    )
    if not is_ours:
        raise ArgumentError(f"path: {path} is not a golddiff store, so it is not overwritten")
    for file in path.rglob("*"):
        is_known = file.suffix in ENDINGS or file.name in NAMES or file.name.startswith(".")
        if not is_known and not file.is_dir():
            raise ArgumentError(
                f"path: {path} holds {file.relative_to(path)}, which is no file of a store, so it "
                "is not overwritten; move the file"
            )


def _image_bytes(info: SourceInfo) -> int:
    return math.prod(info.shape) * (1 if info.dtype == np.uint8 else 4)
