"""Files of arrays: .npy (memory-mapped), .npz, and torch's .pt."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.arrays import as_array, is_array, open_array
from golddiff.sources.source import Rows, class_indices
from golddiff.sources.source_options import SPLIT, SourceOptions
from golddiff.system.errors import CheckpointError, SourceError
from golddiff.system.files import check_unpacked, readable
from golddiff.system.torch_files import read_torch


def open_npy(path: Path, options: SourceOptions) -> Rows:
    """Map an array file; :func:`open_array` lists the shapes and types it may have."""
    options.refuse(".npy files")
    with _loading(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    return open_array(array, options, f"array file {path.name}")


def open_npz(path: Path, options: SourceOptions) -> Rows:
    """Read the images and, if any, the labels of a .npz archive.

    ``options.column`` and ``options.label_column`` name the arrays. The default is the first of
    the usual names (images, x, samples, data, arr_0, x_train, ...; labels, y, y_train, arr_1, ...).
    """
    with _loading(path):
        archive = np.load(path, allow_pickle=False)
    if not isinstance(archive, np.lib.npyio.NpzFile):
        raise SourceError(f"{path.name} is not a .npz archive")
    with archive:
        return _open_arrays(path, list(archive.files), partial(_read_array, archive, path), options)


def open_pt(path: Path, options: SourceOptions) -> Rows:
    """Read a file of ``torch.save``: a tensor, (images, labels), or tensors by name as in .npz.

    Labels may be a list of integers.
    """
    try:
        value = read_torch(path)
    except CheckpointError as error:
        raise SourceError(str(error)) from error
    if is_array(value):
        options.refuse("a single tensor")
        return open_array(value, options, f"tensor file {path.name}")
    if isinstance(value, tuple | list) and len(value) == 2:
        value = dict(zip(("images", "labels"), value, strict=True))
    if not isinstance(value, dict):
        raise SourceError(f"{path.name} holds a {type(value).__name__}, no tensor of images")
    arrays = {}
    for key, entry in value.items():
        if is_array(entry):
            arrays[str(key)] = entry
        elif isinstance(entry, list) and entry and all(type(label) is int for label in entry):
            arrays[str(key)] = np.array(entry)
    return _open_arrays(path, list(arrays), lambda key: as_array(arrays[key], path.name), options)


def _open_arrays(
    path: Path, names: list[str], read: Callable[[str], NDArray[Any]], options: SourceOptions
) -> Rows:
    """Open the images and, if any, the labels among named arrays; ``read`` loads one of them."""
    split = options.split
    images = [f"x_{split}", f"{split}_images", "images", "image", "x", "samples"]
    labels = [f"y_{split}", f"{split}_labels", "labels", "label", "targets", "y"]
    if not {images[0], images[1]} & set(names) and {"x_train", "train_images"} & set(names):
        raise SourceError(f"{path.name} has no split {split!r}; its arrays: {', '.join(names)}")
    key = _find_key(path, names, options.column, [*images, "data", "arr_0"])
    if key is None:
        raise SourceError(
            f"{path.name} holds no array of a known name; name one with column=NAME: "
            + ", ".join(names)
        )
    if key not in images[:2]:
        options.refuse(f"{path.name}, whose images have no splits", [SPLIT])
    label_key = _find_key(path, names, options.label_column, [*labels, "arr_1"])
    pixels = read(key)
    own_labels = None
    if label_key is not None and options.labels is None:
        array = read(label_key)
        array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
        wanted = label_key == options.label_column
        if wanted or label_key != "arr_1" or array.dtype.kind in "iu":  # arr_1 may hold anything
            own_labels = class_indices(array, f"array {label_key} of {path.name}", wanted)
    return open_array(pixels, options, f"array {key} of {path.name}", own_labels)


def _find_key(path: Path, names: list[str], wanted: str | None, usual: list[str]) -> str | None:
    """The wanted name, or the first of the usual names that exists."""
    if wanted is None:
        return next((name for name in usual if name in names), None)
    if wanted not in names:
        raise SourceError(f"{path.name} has no array {wanted!r}; it has: {', '.join(names)}")
    return wanted


def _read_array(archive: Any, path: Path, key: str) -> NDArray[Any]:
    with _loading(path):
        names = archive.zip.namelist()
        member = archive.zip.getinfo(key if key in names else f"{key}.npy")
        check_unpacked(f"{path.name}: array {key!r}", member.compress_size, member.file_size)
        with archive.zip.open(member) as stream:
            array: NDArray[Any] = np.lib.format.read_array(stream)
    return array


@contextlib.contextmanager
def _loading(path: Path) -> Iterator[None]:
    """As :func:`readable`, with a reason of its own for files of Python objects."""
    with readable(f"{path.name} cannot be read"):
        try:
            yield
        except ValueError as error:
            if not re.search("allow_pickle|Python objects|OBJECT array", str(error)):
                raise
            reason = "it holds Python objects, which are not loaded because they can run code"
            raise ValueError(reason) from error
