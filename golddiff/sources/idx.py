"""The idx files of MNIST and similar sets, plain or compressed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.arrays import open_array
from golddiff.sources.source import Rows
from golddiff.sources.source_options import COLUMNS, SourceOptions
from golddiff.system.errors import SourceError
from golddiff.system.files import DecompressedFile, check_inside, readable

_MAGIC = b"\0\0\x08"  # element type: unsigned bytes
_IMAGES = re.compile(r"^(?P<stem>.*)images(?P<dot>[-._])idx3-ubyte(?P<gz>\.gz)?$")
# The words for the splits in the file names of MNIST and EMNIST.
_SPLITS = {"train": ("train",), "test": ("t10k", "test")}


def is_idx(path: Path) -> bool:
    """Whether the file begins as an idx file of bytes."""
    try:
        with DecompressedFile(path) as stream:
            start = stream.read(4)
    except Exception:  # damaged data raise many types of error
        return False
    return start[:3] == _MAGIC and start[3:] in (b"\1", b"\2", b"\3", b"\4")


def idx_files(folder: Path) -> list[Path]:
    """The files in a folder that are named like idx image files, sorted."""
    return sorted(path for path in folder.iterdir() if _IMAGES.match(path.name) and path.is_file())


def open_idx_folder(folder: Path, options: SourceOptions) -> Rows:
    """Read the images of ``options.split`` in a folder of idx files, with their labels."""
    files = idx_files(folder)
    words = _SPLITS.get(options.split, (options.split,))
    for path in files:
        if path.name.startswith(words) or any(f"-{word}-" in path.name for word in words):
            return open_idx(check_inside(folder, path), options)
    raise SourceError(
        f"folder {folder.name} has no idx images of split {options.split!r}; it has: "
        + ", ".join(path.name for path in files)
    )


def open_idx(path: Path, options: SourceOptions) -> Rows:
    """Read one idx file of images, and the labels from the matching file in the same folder."""
    options.refuse("idx files", COLUMNS)
    images = _read_bytes(path)
    if images.ndim != 3:
        raise SourceError(
            f"{path.name} holds numbers of shape {images.shape}, not images (N, H, W)"
        )
    label_path = _label_file(path) if options.labels is None else None
    labels = None if label_path is None else _read_bytes(check_inside(path.parent, label_path))
    return open_array(images, options, f"idx {path.name}", labels)


def _read_bytes(path: Path) -> NDArray[np.uint8]:
    """The array of an idx file of bytes."""
    with readable(f"{path.name} cannot be read"), DecompressedFile(path) as stream:
        data = stream.read()
        if len(data) < 4 or data[:3] != _MAGIC:
            raise SourceError(f"{path.name} is not an idx file of bytes")
        header = 4 + 4 * data[3]
        shape = tuple(np.frombuffer(data, ">u4", data[3], 4).tolist())
        count, present = math.prod(shape), len(data) - header
        if present != count:
            raise SourceError(
                f"{path.name} is damaged: its header {shape} declares {count:,} values, and it "
                f"holds {present:,}"
            )
        return np.frombuffer(data, np.uint8, offset=header).reshape(shape)


def _label_file(images: Path) -> Path | None:
    match = _IMAGES.match(images.name)
    if match is None:
        return None
    names = (
        f"{match['stem']}labels{dot}idx1-ubyte{ending}"
        for dot in (match["dot"], "-", ".")
        for ending in (match["gz"] or "", "", ".gz")
    )
    return next((path for path in map(images.with_name, names) if path.is_file()), None)
