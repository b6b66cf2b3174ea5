"""NumPy's own files: .npy, mapped rather than loaded, and .npz."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import ArgumentError, SourceError
from golddiff.sources.arrays import ArraySource
from golddiff.sources.bombs import check_unpacked
from golddiff.sources.options import Options, check_labels


def open_npy(path: Path, options: Options) -> ArraySource:
    """Read an array file; see ``ArraySource`` for the shapes and types it may have.

    Raises:
        SourceError: the file is damaged, holds Python objects, or an unsuitable array.
    """
    options.refuse_columns(".npy files")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        # A damaged header raises nearly anything: NumPy reads it as Python.
        raise _unreadable(path, error) from error
    return ArraySource(array, options, description=f"array file {path.name}")


def open_npz(path: Path, options: Options) -> ArraySource:
    """Read images, and labels where there are some, of a .npz archive.

    ``options.column`` and ``options.label_column`` name the arrays; without them the usual names
    are tried (images, x, samples, data, arr_0, x_train, ...; labels, y, y_train, arr_1, ...).

    Raises:
        SourceError: the file is damaged, an array holds Python objects or is missing.
    """
    try:
        archive = np.load(path, allow_pickle=False)
    except Exception as error:
        raise _unreadable(path, error) from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise SourceError(f"{path.name} is not a .npz archive")
    with archive:
        found = list(archive.files)
        split = options.split
        images = [f"x_{split}", f"{split}_images", "images", "image", "x", "samples"]
        labels = [f"y_{split}", f"{split}_labels", "labels", "label", "y"]
        if split != "train" and not {images[0], images[1]} & set(found) and "x_train" in found:
            raise SourceError(f"{path.name} has no split {split!r}; its arrays: {', '.join(found)}")
        key = _key(path, found, options.column, [*images, "data", "arr_0"])
        if key is None:
            raise SourceError(
                f"{path.name} holds no array of a known name; say which with column=: "
                + ", ".join(found)
            )
        label_key = _key(path, found, options.label_column, [*labels, "arr_1"])
        pixels = _member(archive, path, key)
        own = None
        if label_key is not None and options.labels is None:
            given = _member(archive, path, label_key)
            # arr_1 may be anything; only whole numbers are taken for labels unasked.
            if label_key == options.label_column or given.dtype.kind in "iu":
                own = _labels(given, len(pixels), path, label_key)
    return ArraySource(pixels, options, labels=own, description=f"array {key} of {path.name}")


def _key(path: Path, found: list[str], asked: str | None, usual: list[str]) -> str | None:
    if asked is None:
        return next((name for name in usual if name in found), None)
    if asked not in found:
        raise SourceError(f"{path.name} has no array {asked!r}; it has: {', '.join(found)}")
    return asked


def _member(archive: Any, path: Path, key: str) -> NDArray[Any]:
    _check_size(archive, path, key)
    try:
        array: NDArray[Any] = archive[key]
    except Exception as error:
        raise _unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        raise SourceError(f"{path.name}: {key!r} is no array")
    if array.ndim == 0:
        raise SourceError(f"{path.name}: array {key!r} is a single value")
    return array


def _check_size(archive: Any, path: Path, key: str) -> None:
    """NumPy makes the array that a header describes before it reads a byte of it."""
    for member in archive.zip.infolist():
        if member.filename in (key, f"{key}.npy"):
            check_unpacked(f"{path.name}: array {key!r}", member.compress_size, member.file_size)
            try:
                with archive.zip.open(member) as stream:
                    shape, dtype = _header(stream)
            except Exception as error:
                raise _unreadable(path, error) from error
            declared = math.prod(shape) * dtype.itemsize
            if declared > member.file_size:
                raise SourceError(
                    f"{path.name}: array {key!r} is damaged: its header calls for {declared:,} "
                    f"bytes, it has {member.file_size:,}"
                )


def _header(stream: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(stream)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read is None:
        raise ValueError(f"it is of version {version} of NumPy's format")
    shape, _, dtype = read(stream)
    return shape, dtype


def _labels(array: NDArray[Any], count: int, path: Path, key: str) -> NDArray[np.int64]:
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    try:
        return check_labels(array, count)
    except ArgumentError as error:
        raise SourceError(f"{path.name}, array {key!r}: {error}") from error


def _unreadable(path: Path, error: BaseException) -> SourceError:
    reason = " ".join(str(error).split())
    if "allow_pickle" in reason or "Python objects" in reason:
        reason = "it holds Python objects, which are not loaded because they can run code"
    return SourceError(f"{path.name} cannot be read: {reason}")
