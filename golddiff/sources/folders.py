"""Folders of image files, loose or one sub folder a class."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from golddiff.errors import SourceError
from golddiff.sources.base import Source
from golddiff.sources.cifar import cifar_folder, open_cifar_folder
from golddiff.sources.classes import by_edm, by_folder, in_split
from golddiff.sources.decode import EXTENSIONS, MAX_ENCODED_BYTES
from golddiff.sources.encoded import EncodedSource, Item, Listing
from golddiff.sources.idx import idx_files, open_idx_folder
from golddiff.sources.names import printable
from golddiff.sources.options import Options
from golddiff.sources.tables import open_parquet, shards_of_split

_EDM_TABLE = "dataset.json"


def open_folder(folder: Path, options: Options) -> Source:
    """Read a folder of images, of parquet shards, of idx files or of CIFAR's pickles.

    Raises:
        SourceError: the folder holds none of these, or both images and parquet shards.
    """
    try:
        cifar = cifar_folder(folder)
        if cifar is not None:
            return open_cifar_folder(cifar, options)
        if idx_files(folder):
            return open_idx_folder(folder, options)
        names, links_out = _files_below(folder)
        edm = (folder / _EDM_TABLE).read_bytes() if _EDM_TABLE in names else None
    except OSError as error:
        raise SourceError(f"folder {folder} cannot be read: {error.strerror or error}") from error
    description = f"folder {folder.resolve().name}"
    images = [name for name in names if os.path.splitext(name)[1].lower() in EXTENSIONS]
    shards = [name for name in names if name.lower().endswith(".parquet")]
    if images and shards:
        raise SourceError(
            f"{description} holds both images ({images[0]}) and parquet files ({shards[0]}); "
            "point at one of the two"
        )
    if shards:
        chosen = shards_of_split(shards, options.split, description)
        return open_parquet([folder / name for name in chosen], options, description)
    if not images:
        left = (
            f" ({links_out} symbolic links that lead out of it were not followed)"
            if links_out
            else ""
        )
        raise SourceError(f"{description} holds no images{left}")
    return _open_images(folder, images, edm, options, description)


def _open_images(
    folder: Path, names: list[str], edm: bytes | None, options: Options, description: str
) -> EncodedSource:
    options.refuse_columns("folders of images")
    class_names = None
    if edm is not None:
        labels = by_edm(edm, names, description)
    else:
        prefix, names = in_split(names, options.split, description)
        labels, class_names = by_folder(names, prefix, description)

    def part(start: int, stop: int) -> Callable[[], Iterator[Item]]:
        return partial(_items, folder, names[start:stop])

    listing = Listing(part(0, len(names)), len(names), labels, class_names, description, part)
    return EncodedSource(listing, options)


def _items(folder: Path, names: list[str]) -> Iterator[Item]:
    for name in names:
        yield Item(printable(name), partial(_read, folder / name))


def _read(path: Path) -> bytes:
    size = path.stat().st_size
    if size > MAX_ENCODED_BYTES:
        raise OSError(f"it has {size:,} bytes")
    return path.read_bytes()


def _files_below(folder: Path) -> tuple[list[str], int]:
    """Paths of all files below, sorted, hidden ones left out; and how many links lead outside."""
    root = os.path.realpath(folder)
    names: list[str] = []
    links_out = 0
    waiting = [""]
    while waiting:
        prefix = waiting.pop()
        with os.scandir(os.path.join(root, prefix)) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    # A linked folder inside would be read twice, or without end.
                    target = os.path.realpath(entry.path)
                    if os.path.commonpath([root, target]) != root:
                        links_out += 1
                    elif os.path.isfile(target):
                        names.append(name)
                elif entry.is_dir():
                    waiting.append(f"{name}/")
                elif entry.is_file():
                    names.append(name)
    return sorted(names), links_out
