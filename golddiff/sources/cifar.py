"""CIFAR-10 and CIFAR-100 as their authors publish them: Python pickles, loose or in a .tar.gz."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.arrays import open_array
from golddiff.sources.guards import Unpacked, inside
from golddiff.sources.source import Rows
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import SourceError, one_line
from golddiff.system.pickled_arrays import ARRAYS
from golddiff.system.pickles import read_pickle

_SIDE = 32
_VALUES = 3 * _SIDE * _SIDE
# The largest file of either data set has 155 MB.
_MAX_FILE_BYTES = 1 << 28

# Names of the files, and in them of labels and class names, for each of the two.
_PARTS = {
    10: {"train": [f"data_batch_{part}" for part in range(1, 6)], "test": ["test_batch"]},
    100: {"train": ["train"], "test": ["test"]},
}
_META = {10: "batches.meta", 100: "meta"}
_LABELS = {
    10: {"labels": "label_names"},
    100: {f"{sort}_labels": f"{sort}_label_names" for sort in ("fine", "coarse")},
}


def cifar_folder(folder: Path) -> Path | None:
    """The folder itself or the one inside it that holds CIFAR's pickles, or None."""
    for place in (folder, folder / "cifar-10-batches-py", folder / "cifar-100-python"):
        if _kind({path.name for path in place.iterdir()} if place.is_dir() else set()):
            return place
    return None


def open_cifar_folder(folder: Path, options: SourceOptions) -> Rows:
    """Read the pickles in a folder such as ``cifar-10-batches-py``.

    Raises:
        SourceError: a file is missing, or is not what CIFAR's files are.
    """
    sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
    return _open(
        sizes, lambda name: inside(folder, folder / name).read_bytes(), options, folder.name
    )


def open_cifar_tar(path: Path, options: SourceOptions) -> Rows:
    """Read the pickles in a .tar or .tar.gz; nothing is extracted to disk.

    Raises:
        SourceError: the archive is damaged or holds no CIFAR pickles, or one is not as it should.
    """
    try:
        with (
            Unpacked(path) as stream,
            tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive,
        ):
            members = {
                member.name.rsplit("/", 1)[-1]: member
                for member in archive.getmembers()
                if member.isfile()
            }

            def read(name: str) -> bytes:
                held = archive.extractfile(members[name])
                return b"" if held is None else held.read()

            sizes = {name: member.size for name, member in members.items()}
            return _open(sizes, read, options, path.name)
    except SourceError:
        raise
    except Exception as error:
        # A damaged archive raises nearly anything: names that are no text, numbers out of range.
        reason = one_line(error)
        raise SourceError(f"{path.name} is not a readable tar archive: {reason}") from error


def _open(
    sizes: dict[str, int], read: Callable[[str], bytes], options: SourceOptions, description: str
) -> Rows:
    kind = _kind(sizes.keys())
    if kind is None:
        raise SourceError(
            f"{description} holds none of CIFAR's files (data_batch_1..5, or train and meta)"
        )
    if options.column is not None:
        options.refuse_columns("CIFAR's pickles, which hold one set of images")
    labels_key = _labels_key(kind, options.label_column)
    parts = _PARTS[kind].get(options.split)
    if parts is None:
        raise SourceError(f"{description} has no split {options.split!r}; it has: test, train")
    missing = [part for part in parts if part not in sizes]
    if missing:
        raise SourceError(f"{description} lacks {', '.join(missing)}")

    def table(name: str) -> dict[bytes, Any]:
        if sizes[name] > _MAX_FILE_BYTES:
            raise SourceError(f"{name} has {sizes[name]:,} bytes, more than any file of CIFAR's")
        try:
            found = read_pickle(read(name), ARRAYS)
        except UnpicklingError as error:
            raise SourceError(f"{name} is no pickle of plain arrays: {error}") from error
        if not isinstance(found, dict):
            raise SourceError(
                f"{name} holds a {type(found).__name__}, not the dict of a CIFAR file"
            )
        return {k.encode() if isinstance(k, str) else k: value for k, value in found.items()}

    pixels, labels = zip(*(_part(table(part), part, labels_key) for part in parts), strict=True)
    class_names = None
    if _META[kind] in sizes:
        names_key = _LABELS[kind][labels_key]
        class_names = _class_names(table(_META[kind]), _META[kind], names_key)
    description = f"CIFAR-{kind} {description} ({options.split})"
    values = np.concatenate(pixels).reshape(-1, 3, _SIDE, _SIDE)
    return open_array(values, options, description, np.concatenate(labels), class_names)


def _kind(names: set[str] | Any) -> int | None:
    if names & {"data_batch_1", "test_batch", "batches.meta"}:
        return 10
    # "train" and "test" alone are too common as names.
    return 100 if "meta" in names and names & {"train", "test"} else None


def _labels_key(kind: int, label_column: str | None) -> str:
    known = _LABELS[kind]
    if label_column is None:
        return next(iter(known))
    for name in known:
        if label_column in (name, name.removesuffix("s")):
            return name
    shown = ", ".join(f"{name}, {name.removesuffix('s')}" for name in known)
    raise SourceError(f"CIFAR-{kind} has no label column {label_column!r}; it has: {shown}")


def _part(
    table: dict[bytes, Any], name: str, labels_key: str
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels, labels = table.get(b"data"), table.get(labels_key.encode())
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        pixels = np.empty((0, 0), np.uint8)
    if pixels.shape[1] != _VALUES:
        raise SourceError(f"{name} holds no uint8 array 'data' of {_VALUES} columns")
    if (
        not isinstance(labels, list)
        or len(labels) != len(pixels)
        or not all(isinstance(label, int) and 0 <= label < 1000 for label in labels)
    ):
        raise SourceError(f"{name} holds no list {labels_key!r} of {len(pixels)} class indices")
    return np.asarray(pixels), np.array(labels, np.int64)


def _class_names(table: dict[bytes, Any], name: str, key: str) -> tuple[str, ...]:
    names = table.get(key.encode())
    if not isinstance(names, list):
        raise SourceError(f"{name} holds no list {key!r}")
    return tuple(
        entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry)
        for entry in names
    )
