"""CIFAR-10 and CIFAR-100 as their authors publish them: Python pickles, loose or in a .tar.gz."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import SourceError
from golddiff.sources.arrays import ArraySource
from golddiff.sources.bombs import Bounded, allowed
from golddiff.sources.links import inside
from golddiff.sources.options import Options
from golddiff.sources.safe_pickle import load_plain

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

_Reader = Callable[[str], bytes]


def cifar_folder(folder: Path) -> Path | None:
    """The folder itself or the one inside it that holds CIFAR's pickles, or None."""
    for place in (folder, folder / "cifar-10-batches-py", folder / "cifar-100-python"):
        if _kind({path.name for path in place.iterdir()} if place.is_dir() else set()):
            return place
    return None


def open_cifar_folder(folder: Path, options: Options) -> ArraySource:
    """Read the pickles in a folder such as ``cifar-10-batches-py``.

    Raises:
        SourceError: a file is missing, or is not what CIFAR's files are.
    """
    names = {path.name for path in folder.iterdir()}

    def read(name: str) -> bytes:
        path = inside(folder, folder / name)
        _check_size(name, path.stat().st_size)
        return path.read_bytes()

    return _open(names, read, options, folder.name)


def open_cifar_tar(path: Path, options: Options) -> ArraySource:
    """Read the pickles in a .tar or .tar.gz; nothing is extracted to disk.

    Raises:
        SourceError: the archive is damaged or holds no CIFAR pickles, or one is not as it should.
    """
    try:
        with (
            path.open("rb") as packed,
            _unpacked(packed) as stream,
            tarfile.open(
                fileobj=Bounded(stream, allowed(path.stat().st_size)), mode="r:"
            ) as archive,
        ):
            members = {
                member.name.rsplit("/", 1)[-1]: member
                for member in archive.getmembers()
                if member.isfile()
            }

            def read(name: str) -> bytes:
                member = members[name]
                _check_size(name, member.size)
                held = archive.extractfile(member)
                return b"" if held is None else held.read()

            return _open(set(members), read, options, path.name)
    except SourceError:
        raise
    except Exception as error:
        # A damaged archive raises nearly anything: names that are no text, numbers out of range.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{path.name} is not a readable tar archive: {reason}") from error


def _unpacked(packed: IO[bytes]) -> IO[bytes]:
    """A tar archive as it was before gzip, bzip2 or xz, whichever it is in."""
    head = packed.read(6)
    packed.seek(0)
    if head.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.GzipFile(fileobj=packed))
    if head.startswith(b"BZh"):
        return bz2.BZ2File(packed)
    if head.startswith(b"\xfd7zXZ\x00"):
        return lzma.LZMAFile(packed)
    return packed


def _open(names: set[str], read: _Reader, options: Options, description: str) -> ArraySource:
    kind = _kind(names)
    if kind is None:
        raise SourceError(
            f"{description} holds none of CIFAR's files (data_batch_1..5, or train and meta)"
        )
    if options.column is not None:
        options.refuse_columns("CIFAR's pickles, which hold one set of images")
    labels_key, names_key = _label_keys(kind, options.label_column)
    parts = _PARTS[kind].get(options.split)
    if parts is None:
        raise SourceError(f"{description} has no split {options.split!r}; it has: test, train")
    missing = [part for part in parts if part not in names]
    if missing:
        raise SourceError(f"{description} lacks {', '.join(missing)}")
    loaded = [_part(read(part), part, labels_key) for part in parts]
    class_names = None
    if _META[kind] in names:
        class_names = _class_names(read(_META[kind]), _META[kind], names_key)
    return ArraySource(
        np.concatenate([pixels for pixels, _ in loaded]),
        options,
        labels=np.concatenate([labels for _, labels in loaded]),
        class_names=class_names,
        description=f"CIFAR-{kind} {description} ({options.split})",
    )


def _kind(names: set[str]) -> int | None:
    if names & {"data_batch_1", "test_batch", "batches.meta"}:
        return 10
    # "train" and "test" alone are too common as names.
    return 100 if "meta" in names and names & {"train", "test"} else None


def _label_keys(kind: int, label_column: str | None) -> tuple[str, str]:
    if kind == 10:
        known = {"labels": "label_names", "label": "label_names"}
    else:
        known = {f"{sort}_label{s}": f"{sort}_label_names" for sort in _SORTS for s in ("s", "")}
    chosen = label_column or next(iter(known))
    if chosen not in known:
        raise SourceError(
            f"CIFAR-{kind} has no label column {chosen!r}; it has: {', '.join(known)}"
        )
    return (chosen if chosen.endswith("s") else f"{chosen}s"), known[chosen]


_SORTS = ("fine", "coarse")


def _part(data: bytes, name: str, labels_key: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    table = _dictionary(data, name)
    pixels = table.get(b"data")
    if (
        not isinstance(pixels, np.ndarray)
        or pixels.dtype != np.uint8
        or pixels.ndim != 2
        or pixels.shape[1] != _VALUES
    ):
        raise SourceError(f"{name} holds no uint8 array 'data' of {_VALUES} columns")
    labels = table.get(labels_key.encode())
    if (
        not isinstance(labels, list)
        or len(labels) != len(pixels)
        or not all(isinstance(label, int) and 0 <= label < 1000 for label in labels)
    ):
        raise SourceError(f"{name} holds no list {labels_key!r} of {len(pixels)} class indices")
    return pixels.reshape(-1, 3, _SIDE, _SIDE), np.array(labels, np.int64)


def _class_names(data: bytes, name: str, key: str) -> tuple[str, ...]:
    names = _dictionary(data, name).get(key.encode())
    if not isinstance(names, list):
        raise SourceError(f"{name} holds no list {key!r}")
    return tuple(
        entry.decode("utf-8", "replace") if isinstance(entry, bytes) else str(entry)
        for entry in names
    )


def _dictionary(data: bytes, name: str) -> dict[bytes, Any]:
    table = load_plain(data, name)
    if not isinstance(table, dict):
        raise SourceError(f"{name} holds a {type(table).__name__}, not the dict of a CIFAR file")
    return {key.encode() if isinstance(key, str) else key: value for key, value in table.items()}


def _check_size(name: str, size: int) -> None:
    if size > _MAX_FILE_BYTES:
        raise SourceError(f"{name} has {size:,} bytes, more than any file of CIFAR's")
