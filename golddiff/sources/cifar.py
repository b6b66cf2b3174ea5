"""CIFAR-10 and CIFAR-100 as their authors publish them: Python pickles, loose or in a .tar.gz."""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.arrays import open_array
from golddiff.sources.source import Rows, own_labels
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import SourceError
from golddiff.system.files import DecompressedFile, check_inside, readable
from golddiff.system.numbers import I64
from golddiff.system.pickles import ARRAYS, read_pickle

_VALUES = 3 * 32 * 32
# The largest file of either data set has 155 MB.
_MAX_FILE_BYTES = 1 << 28

# Per variant: files of each split, file of class names, {key of labels: key of class names}.
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
    """The folder, or its subfolder of the usual name, with CIFAR's pickles; None without them."""
    for inner in (folder, folder / "cifar-10-batches-py", folder / "cifar-100-python"):
        if inner.is_dir() and _variant({path.name for path in inner.iterdir() if path.is_file()}):
            return inner
    return None


def open_cifar_folder(folder: Path, options: SourceOptions) -> Rows:
    """Read the pickles in a folder such as ``cifar-10-batches-py``."""
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}

    def read(name: str) -> bytes:
        return check_inside(folder, folder / name).read_bytes()

    return _open(sizes, read, options, folder.name)


def open_cifar_tar(path: Path, options: SourceOptions) -> Rows:
    """Read the pickles in a .tar or .tar.gz; nothing is extracted to disk."""
    with (
        readable(f"{path.name} is not a readable tar archive"),
        DecompressedFile(path) as stream,
        tarfile.open(fileobj=cast(IO[bytes], stream), mode="r:") as archive,
    ):
        members = {m.name.rsplit("/", 1)[-1]: m for m in archive.getmembers() if m.isfile()}
        sizes = {name: member.size for name, member in members.items()}

        def read(name: str) -> bytes:
            return cast(IO[bytes], archive.extractfile(members[name])).read()

        return _open(sizes, read, options, path.name)


def _variant(names: set[str]) -> int | None:
    """10 or 100, by the file names; None for other files."""
    if names & {"data_batch_1", "test_batch", "batches.meta"}:
        return 10
    # "train" and "test" alone are too common to identify CIFAR-100.
    return 100 if "meta" in names and names & {"train", "test"} else None


def _open(
    sizes: dict[str, int], read: Callable[[str], bytes], options: SourceOptions, name: str
) -> Rows:
    """Open the images of CIFAR's files, given each file's size and a function that reads one."""
    variant = _variant(set(sizes))
    if variant is None:
        raise SourceError(
            f"{name} holds none of CIFAR's files (data_batch_1..5, or train and meta); give "
            "pictures as a folder or a .zip"
        )
    options.refuse("CIFAR's pickles, which hold one set of images", ["column"])
    columns = {short: key for key in _LABELS[variant] for short in (key, key.removesuffix("s"))}
    column = options.label_column or next(iter(columns))
    if column not in columns:
        raise SourceError(
            f"CIFAR-{variant} has no label column {column!r}; it has: {', '.join(columns)}"
        )
    options.require_split(("test", "train"), name)
    parts = _PARTS[variant][options.split]
    missing = [part for part in parts if part not in sizes]
    if missing:
        raise SourceError(f"{name} lacks {', '.join(missing)}")

    def table(part: str) -> dict[str, Any]:
        if sizes[part] > _MAX_FILE_BYTES:
            raise SourceError(f"{part} has {sizes[part]:,} bytes, more than any file of CIFAR's")
        return _read_batch(read(part), part)

    key = columns[column]
    pixels, labels = zip(*(_examples(table(part), part, key) for part in parts), strict=True)
    class_names = None
    if _META[variant] in sizes:
        names = _list_entry(table(_META[variant]), _META[variant], _LABELS[variant][key])
        class_names = tuple(map(_text, names))
    values = np.concatenate(pixels).reshape(-1, 3, 32, 32)
    description = f"CIFAR-{variant} {name} ({options.split})"
    return open_array(values, options, description, np.concatenate(labels), class_names)


def _read_batch(data: bytes, name: str) -> dict[str, Any]:
    with readable(f"{name} is not a pickle of plain arrays"):
        table = read_pickle(data, ARRAYS)
    if not isinstance(table, dict):
        raise SourceError(f"{name} holds a {type(table).__name__}, not the dict of a CIFAR file")
    return {_text(key): value for key, value in table.items()}


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _examples(table: dict[str, Any], name: str, key: str) -> tuple[NDArray[np.uint8], I64]:
    pixels: Any = table.get("data")
    is_images = isinstance(pixels, np.ndarray) and pixels.dtype == np.uint8
    if not is_images or pixels.shape[1:] != (_VALUES,):
        raise SourceError(f"{name} holds no uint8 array 'data' of {_VALUES} columns")
    return np.asarray(pixels), own_labels(_list_entry(table, name, key), len(pixels), name)


def _list_entry(table: dict[str, Any], name: str, key: str) -> list[Any]:
    if not isinstance(table.get(key), list):
        raise SourceError(f"{name} holds no list {key!r}")
    return list(table[key])
