"""Files of arrays: .npy, mapped rather than loaded, .npz, and torch's .pt."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.arrays import as_array, is_array, open_array
from golddiff.sources.source import Rows
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import CheckpointError, SourceError, one_line
from golddiff.system.files import check_unpacked

_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def open_npy(path: Path, options: SourceOptions) -> Rows:
    """Read an array file; see :func:`open_array` for the shapes and types it may have."""
    options.refuse_columns(".npy files")
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:
        # A damaged header raises nearly anything: NumPy reads it as Python.
        raise _unreadable(path, error) from error
    return open_array(array, options, f"array file {path.name}")


def open_npz(path: Path, options: SourceOptions) -> Rows:
    """Read images, and labels where there are some, of a .npz archive.

    ``options.column`` and ``options.label_column`` name the arrays; without them the usual names
    are tried (images, x, samples, data, arr_0, x_train, ...; labels, y, y_train, arr_1, ...).
    """
    try:
        archive = np.load(path, allow_pickle=False)
    except Exception as error:
        raise _unreadable(path, error) from error
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise SourceError(f"{path.name} is not a .npz archive")
    with archive:
        return _named(path, list(archive.files), partial(_member, archive, path), options)


def open_pt(path: Path, options: SourceOptions) -> Rows:
    """Read what ``torch.save`` wrote: a tensor, (images, labels), or tensors by name as in .npz.

    Labels may be a list of whole numbers.
    """
    from golddiff.system.torch_files import read_torch  # which imports torch

    try:
        value = read_torch(path)
    except CheckpointError as error:
        raise SourceError(str(error)) from error
    if is_array(value):
        options.refuse_columns("a single tensor")
        return open_array(value, options, f"tensor file {path.name}")
    if isinstance(value, tuple | list) and len(value) == 2:
        value = dict(zip(("images", "labels"), value, strict=True))
    if not isinstance(value, dict):
        raise SourceError(f"{path.name} holds a {type(value).__name__}, no tensor of images")
    entries = {str(key): _as_numbers(entry) for key, entry in value.items()}
    arrays = {key: entry for key, entry in entries.items() if is_array(entry)}
    return _named(path, list(arrays), lambda key: as_array(arrays[key], path.name), options)


def _as_numbers(entry: Any) -> Any:
    """A list of whole numbers, as which labels often come, as an array."""
    numbers = isinstance(entry, list) and entry and all(type(one) is int for one in entry)
    return np.array(entry) if numbers else entry


def _named(
    path: Path, found: list[str], member: Callable[[str], NDArray[Any]], options: SourceOptions
) -> Rows:
    """The images, and labels where there are some, among arrays of these names."""
    split = options.split
    images = [f"x_{split}", f"{split}_images", "images", "image", "x", "samples"]
    labels = [f"y_{split}", f"{split}_labels", "labels", "label", "y"]
    if split != "train" and not {images[0], images[1]} & set(found) and "x_train" in found:
        raise SourceError(f"{path.name} has no split {split!r}; its arrays: {', '.join(found)}")
    key = _key(path, found, options.column, [*images, "data", "arr_0"])
    if key is None:
        raise SourceError(
            f"{path.name} holds no array of a known name; say by column= which of: "
            + ", ".join(found)
        )
    label_key = _key(path, found, options.label_column, [*labels, "arr_1"])
    pixels = member(key)
    own = None
    if label_key is not None and options.labels is None:
        given = member(label_key)
        # arr_1 may be anything; only whole numbers are taken for labels unasked.
        if label_key == options.label_column or given.dtype.kind in "iu":
            own = given[:, 0] if given.ndim == 2 and given.shape[1] == 1 else given
    return open_array(pixels, options, f"array {key} of {path.name}", own)


def _key(path: Path, found: list[str], asked: str | None, usual: list[str]) -> str | None:
    if asked is None:
        return next((name for name in usual if name in found), None)
    if asked not in found:
        raise SourceError(f"{path.name} has no array {asked!r}; it has: {', '.join(found)}")
    return asked


def _member(archive: Any, path: Path, key: str) -> NDArray[Any]:
    try:
        names = archive.zip.namelist()
        member = archive.zip.getinfo(key if key in names else f"{key}.npy")
        check_unpacked(f"{path.name}: array {key!r}", member.compress_size, member.file_size)
        # NumPy itself makes the array that a header describes before it reads a byte of it.
        with archive.zip.open(member) as stream:
            version = np.lib.format.read_magic(stream)
            if version not in _HEADERS:
                raise ValueError(f"it is of version {version} of NumPy's format")
            shape, by_column, dtype = _HEADERS[version](stream)
            values = np.frombuffer(stream.read(), dtype)
        array: NDArray[Any] = values.reshape(shape, order="F" if by_column else "C")
    except SourceError:
        raise
    except Exception as error:
        raise _unreadable(path, error) from error
    if array.ndim == 0:
        raise SourceError(f"{path.name}: array {key!r} is a single value")
    return array


def _unreadable(path: Path, error: Exception) -> SourceError:
    reason = one_line(error)
    if any(word in reason for word in ("allow_pickle", "Python objects", "OBJECT array")):
        reason = "it holds Python objects, which are not loaded because they can run code"
    return SourceError(f"{path.name} cannot be read: {reason}")
