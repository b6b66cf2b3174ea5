"""The idx files of MNIST and its kin, plain or gzipped."""

from __future__ import annotations

import gzip
import math
import re
import zlib
from pathlib import Path
from typing import IO, cast

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import SourceError
from golddiff.sources.arrays import ArraySource
from golddiff.sources.bombs import allowed
from golddiff.sources.links import inside
from golddiff.sources.options import Options

_UBYTE = 0x08
_IMAGES = re.compile(r"^(?P<stem>.*)images(?P<dot>[-._])idx3-ubyte(?P<gz>\.gz)?$")
# The first word of the file names that MNIST gave its splits.
_SPLITS = {"train": ("train",), "test": ("t10k", "test")}


def is_idx(path: Path) -> bool:
    """Whether the file's first bytes are those of an idx file of bytes."""
    try:
        with _stream(path) as stream:
            start = stream.read(4)
    except (OSError, EOFError, zlib.error):
        return False
    return start[:3] == bytes((0, 0, _UBYTE)) and start[3:] in (b"\1", b"\2", b"\3", b"\4")


def idx_files(folder: Path) -> list[Path]:
    """The image files of idx name in a folder, sorted."""
    return sorted(path for path in folder.iterdir() if _IMAGES.match(path.name) and path.is_file())


def open_idx_folder(folder: Path, options: Options) -> ArraySource:
    """Read the images of ``options.split`` in a folder of idx files, with their labels.

    Raises:
        SourceError: there are none of that split, or they are damaged.
    """
    files = idx_files(folder)
    words = _SPLITS.get(options.split, (options.split,))
    chosen = [path for path in files if path.name.startswith(words) or f"-{words[0]}-" in path.name]
    if not chosen:
        raise SourceError(
            f"folder {folder.name} has no idx images of split {options.split!r}; it has: "
            + ", ".join(path.name for path in files)
        )
    return open_idx(inside(folder, chosen[0]), options)


def open_idx(path: Path, options: Options) -> ArraySource:
    """Read one idx file of images, with the labels in the file of the matching name beside it.

    Raises:
        SourceError: the file is damaged or holds no images, or the labels do not fit.
    """
    options.refuse_columns("idx files")
    images = read_idx(path)
    if images.ndim != 3:
        raise SourceError(
            f"{path.name} holds numbers of shape {images.shape}, not images (N, H, W)"
        )
    labels = None
    beside = _labels_beside(path)
    if beside is not None and options.labels is None:
        labels = read_idx(inside(path.parent, beside)).astype(np.int64)
        if labels.shape != images.shape[:1]:
            raise SourceError(
                f"{beside.name} holds {len(labels)} labels for the {len(images)} images of "
                f"{path.name}"
            )
    return ArraySource(images, options, labels=labels, description=f"idx {path.name}")


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The numbers of an idx file of bytes, in its own shape.

    Raises:
        SourceError: the file is no such idx file, or shorter or longer than it says.
    """
    try:
        with _stream(path) as stream:
            start = stream.read(4)
            if len(start) < 4 or start[:2] != b"\0\0" or start[2] != _UBYTE:
                raise SourceError(f"{path.name} is not an idx file of bytes")
            sizes = stream.read(4 * start[3])
            if len(sizes) < 4 * start[3]:
                raise SourceError(f"{path.name} is damaged: it ends within its header")
            shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
            wanted = math.prod(shape)
            most = allowed(path.stat().st_size)
            data = _at_most(stream, min(wanted, most) + 1)
            if len(data) > most:
                raise SourceError(f"{path.name} unpacks to more than {most:,} bytes")
    except (OSError, EOFError, zlib.error) as error:
        raise SourceError(f"{path.name} cannot be read: {error}") from error
    if len(data) != wanted:
        came = "more" if len(data) > wanted else f"{len(data):,}"
        raise SourceError(
            f"{path.name} is damaged: its header {shape} calls for {wanted:,} values, {came} came"
        )
    return np.frombuffer(data, np.uint8).reshape(shape)


def _at_most(stream: IO[bytes], wanted: int) -> bytes:
    # Piece by piece: a forged header must not make us reserve what the file does not hold.
    pieces: list[bytes] = []
    while wanted > 0 and (piece := stream.read(min(wanted, 1 << 24))):
        pieces.append(piece)
        wanted -= len(piece)
    return b"".join(pieces)


def _stream(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path, "rb"))
    return path.open("rb")


def _labels_beside(images: Path) -> Path | None:
    match = _IMAGES.match(images.name)
    if match is None:
        return None
    for dot in dict.fromkeys((match["dot"], "-", ".")):
        for ending in dict.fromkeys((match["gz"] or "", "", ".gz")):
            path = images.with_name(f"{match['stem']}labels{dot}idx1-ubyte{ending}")
            if path.is_file():
                return path
    return None
