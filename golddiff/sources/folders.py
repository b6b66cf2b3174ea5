"""Image files in a folder or zip archive: flat, one subfolder per class, or EDM's layout."""

from __future__ import annotations

import json
import logging
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from golddiff.sources.cifar import cifar_folder, open_cifar_folder
from golddiff.sources.decode import EXTENSIONS, MAX_ENCODED_BYTES, read_file
from golddiff.sources.examples import ExampleSource, Item
from golddiff.sources.idx import idx_files, open_idx_folder
from golddiff.sources.source import Source
from golddiff.sources.source_options import COLUMNS, SPLIT, SourceOptions
from golddiff.sources.tables import SPLIT_NAMES, open_parquet, shards_of_split
from golddiff.system.errors import SourceError, printable
from golddiff.system.files import check_unpacked, readable
from golddiff.system.numbers import I64

log = logging.getLogger("golddiff")

_EDM_TABLE = "dataset.json"
# Image formats of cameras and programs that Pillow does not read by itself.
_UNSUPPORTED = frozenset({".heic", ".heif", ".jxl", ".psd", ".svg", ".dcm"})
_UNSUPPORTED |= {".arw", ".cr2", ".cr3", ".dng", ".nef", ".orf", ".raf", ".rw2"}
# EDM's tool numbers the images and splits them into folders of a thousand, which are not classes.
_EDM_NUMBERED = re.compile(r"^(.*/)?\d{5}/img\d{8}\.\w+$")


def open_folder(folder: Path, options: SourceOptions) -> Source:
    """Read a folder of images, of parquet shards, of idx files or of CIFAR's pickles."""
    with readable(f"folder {folder} cannot be read"):
        cifar = cifar_folder(folder)
        if cifar is not None:
            return open_cifar_folder(cifar, options)
        if idx_files(folder):
            return open_idx_folder(folder, options)
        names, links_outside = files_below(folder)
        table = (folder / _EDM_TABLE).read_bytes() if _EDM_TABLE in names else None
    description = f"folder {printable(folder.resolve().name)}"
    images = _images_among(names, description)
    shards = [name for name in names if name.lower().endswith(".parquet")]
    if images and shards:
        raise SourceError(
            f"{description} holds both images ({images[0]}) and parquet files ({shards[0]}); "
            "give the path of one kind only"
        )
    if shards:
        chosen = shards_of_split(shards, options, description)
        return open_parquet([folder / name for name in chosen], options, description)
    if not images:
        if any(name.endswith(".arrow") for name in names):
            raise SourceError(
                f"{description} holds a data set of datasets' save_to_disk; in Python give "
                "datasets.load_from_disk(folder), or write it by to_parquet"
            )
        note = f" ({links_outside} symbolic links that lead out of it were not followed)"
        raise SourceError(f"{description} holds no images{note if links_outside else ''}")
    if links_outside:
        log.warning(
            "%s: %s symbolic links that lead out of it are left out; copy the files, or give the "
            "folder they lead to", description, f"{links_outside:,}",
        )  # fmt: skip
    options.refuse("folders of images", COLUMNS)
    names, labels, class_names = _names_and_labels(images, table, options, description)
    items = partial(_file_items, folder, names)
    return ExampleSource(items, len(names), options, description, labels, class_names)


def open_zip(path: Path, options: SourceOptions) -> ExampleSource:
    """Read the images of a zip archive, sorted by name; nothing is extracted to disk."""
    description = f"zip {printable(path.name)}"
    options.refuse("zip archives of images", COLUMNS)
    with readable(f"{path.name} is not a readable zip archive"), zipfile.ZipFile(path) as archive:
        members = {info.filename for info in archive.infolist() if not info.is_dir()}
        images = _images_among(sorted(members), description)
        if not images:
            raise SourceError(f"{description} holds no images")
        table = _read_member(archive, _EDM_TABLE) if _EDM_TABLE in members else None
    names, labels, class_names = _names_and_labels(images, table, options, description)
    items = partial(_zip_items, path, names)
    return ExampleSource(items, len(names), options, description, labels, class_names)


def _file_items(folder: Path, names: Sequence[str], start: int, stop: int) -> Iterator[Item]:
    for name in names[start:stop]:
        yield Item(name, partial(read_file, folder / name), file=name)


def _zip_items(path: Path, names: Sequence[str], start: int, stop: int) -> Iterator[Item]:
    archive = zipfile.ZipFile(path)  # the items hold it open
    for name in names[start:stop]:
        yield Item(f"{name} in {path.name}", partial(_read_member, archive, name), file=name)


def _read_member(archive: zipfile.ZipFile, name: str) -> bytes:
    # zipfile stops at the recorded size, so it is enough to check that size.
    member = archive.getinfo(name)
    if member.file_size > MAX_ENCODED_BYTES:
        raise OSError(f"it unpacks to {member.file_size:,} bytes")
    check_unpacked(name, member.compress_size, member.file_size)
    return archive.read(member)


def _images_among(names: Sequence[str], description: str) -> list[str]:
    """The images that can be read; warns of others."""
    unsupported = [name for name in names if _is_image(name, _UNSUPPORTED)]
    if unsupported:
        kinds = ", ".join(sorted({os.path.splitext(name)[1].lower() for name in unsupported}))
        log.warning(
            "%s: pictures of kinds that are not read (%s) are left out, %s in all, such as %s; "
            "convert them to .jpg or .png, say by ImageMagick: magick mogrify -format jpg FILES",
            description, kinds, f"{len(unsupported):,}", printable(unsupported[0]),
        )  # fmt: skip
    return [name for name in names if _is_image(name)]


def _is_image(name: str, endings: frozenset[str] = EXTENSIONS) -> bool:
    parts = [part for part in name.split("/") if part not in (".", "..")]
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return not hidden and os.path.splitext(name)[1].lower() in endings


def files_below(folder: Path) -> tuple[list[str], int]:
    """The sorted paths of all files below, without hidden ones, and the number of links outside.

    It uses scandir: os.walk with a check of every link took 20 times as long.
    """
    root = os.path.realpath(folder)
    names: list[str] = []
    links_outside = 0
    pending = [""]
    while pending:
        prefix = pending.pop()
        current = os.path.join(root, prefix)
        with readable(f"folder {current} cannot be read"), os.scandir(current) as entries:
            for entry in entries:
                name = prefix + entry.name
                if entry.name.startswith("."):
                    continue
                if entry.is_symlink():
                    # Links to folders are not followed: they can repeat files, or form a cycle.
                    target = os.path.realpath(entry.path)
                    if os.path.commonpath([root, target]) != root:
                        links_outside += 1
                    elif os.path.isfile(target):
                        names.append(name)
                elif entry.is_dir():
                    pending.append(f"{name}/")
                elif entry.is_file():
                    names.append(name)
    return sorted(names), links_outside


def _names_and_labels(
    names: list[str], table: bytes | None, options: SourceOptions, description: str
) -> tuple[list[str], I64 | None, tuple[str, ...] | None]:
    """The names of the split's images, their labels and the class names.

    Labels come from EDM's dataset.json (``table``) if there is one, else from the folders.
    ``names`` are sorted paths with ``/`` between folders.
    """
    if table is not None:
        options.refuse(f"{description}, which has no splits", [SPLIT])
        return names, _labels_of_table(table, names, description), None
    names, folders = _in_split(names, options, description)
    tops = [folder[0] if folder else None for folder in folders]
    if all(top is None for top in tops) or all(_EDM_NUMBERED.match(name) for name in names):
        return names, None, None
    if None in tops:
        loose = names[tops.index(None)]
        inside = next(name for name, top in zip(names, tops, strict=True) if top is not None)
        if SPLIT_NAMES.issuperset({*tops} - {None}):
            raise SourceError(
                f"{description} holds images both loose ({loose}) and in folders named like splits "
                f"({inside}); move the loose ones, or rename the folders"
            )
        log.warning(
            "%s: no classes, since images lie both loose (%s) and in sub folders (%s)",
            description, printable(loose), printable(inside),
        )  # fmt: skip
        return names, None, None
    class_names, labels = np.unique([str(top) for top in tops], return_inverse=True)
    return names, labels.astype(np.int64), tuple(class_names.tolist())


def _in_split(
    names: list[str], options: SourceOptions, description: str
) -> tuple[list[str], list[list[str]]]:
    """The names in the split, and the folders of each without those that enclose all images."""
    folders, has_splits = [name.split("/")[:-1] for name in names], False
    while all(folders):
        outermost = sorted({folder[0] for folder in folders})
        if SPLIT_NAMES.issuperset(outermost):
            has_splits = True
            options.require_split(outermost, description)
            chosen = [i for i, folder in enumerate(folders) if folder[0] == options.split]
            names, folders = [names[i] for i in chosen], [folders[i] for i in chosen]
        elif len(outermost) > 1:
            break
        folders = [folder[1:] for folder in folders]
    if not has_splits:
        options.refuse(f"{description}, which has no splits", [SPLIT])
    return names, folders


def _labels_of_table(text: bytes, names: list[str], description: str) -> I64 | None:
    """Labels from EDM's dataset.json, ``{"labels": [[name, index], ...]}``; None if absent."""
    with readable(f"dataset.json of {description} is not JSON"):
        table = json.loads(text)
    pairs = table.get("labels") if isinstance(table, dict) else None
    if pairs is None:
        return None
    try:
        label_of = {name.replace("\\", "/"): label for name, label in pairs}
    except (TypeError, ValueError, AttributeError) as error:
        raise SourceError(
            f"dataset.json of {description}: 'labels' is not a list of [name, index] pairs"
        ) from error
    for name in names:
        label = label_of.get(name)
        if type(label) is not int or not 0 <= label < 2**62:
            problem = "no label" if name not in label_of else f"{label!r}, no class index,"
            raise SourceError(f"dataset.json of {description} gives {problem} for {name}")
    return np.array([label_of[name] for name in names], np.int64)
