"""Zip archives of images, read member by member: EDM's, or plain with a folder a class."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from golddiff.errors import GoldDiffError, SourceError
from golddiff.sources.bombs import check_unpacked
from golddiff.sources.classes import by_edm, by_folder, in_split
from golddiff.sources.decode import EXTENSIONS, MAX_ENCODED_BYTES
from golddiff.sources.encoded import EncodedSource, Item, Listing
from golddiff.sources.names import printable
from golddiff.sources.options import Options

_EDM_TABLE = "dataset.json"


def open_zip(path: Path, options: Options) -> EncodedSource:
    """Read the images of a zip archive in the order of their names; nothing is extracted.

    Labels come from EDM's ``dataset.json`` where there is one, else from the folders.

    Raises:
        SourceError: the archive is damaged, or holds no images.
    """
    description = f"zip {path.name}"
    options.refuse_columns("zip archives of images")
    class_names = None
    try:
        # Stays open as long as the source lives: the images are read when they are asked for.
        archive = zipfile.ZipFile(path)
        members = {
            info.filename: info
            for info in archive.infolist()
            if info.filename and not info.is_dir()
        }
        names = sorted(name for name in members if _is_image(name))
        if not names:
            raise SourceError(f"{description} holds no images")
        if _EDM_TABLE in members:
            table = _read(archive, members[_EDM_TABLE])
            labels = by_edm(table, names, description)
        else:
            prefix, names = in_split(names, options.split, description)
            labels, class_names = by_folder(names, prefix, description)
    except GoldDiffError:
        raise
    except Exception as error:
        # Damage raises nearly anything: names that are no text, times that never were, numbers
        # that do not fit; RuntimeError for an encrypted member or an unknown compression.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SourceError(f"{path.name} is not a readable zip archive: {reason}") from error

    def items() -> Iterator[Item]:
        for name in names:
            yield Item(printable(f"{name} in {path.name}"), partial(_read, archive, members[name]))

    return EncodedSource(Listing(items, len(names), labels, class_names, description), options)


def _is_image(name: str) -> bool:
    parts = [part for part in name.split("/") if part not in (".", "..")]
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in parts)
    return not hidden and os.path.splitext(name)[1].lower() in EXTENSIONS


def _read(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    # zipfile stops at the size that the archive gives, so checking that is enough.
    if member.file_size > MAX_ENCODED_BYTES:
        raise OSError(f"it unpacks to {member.file_size:,} bytes")
    check_unpacked(member.filename, member.compress_size, member.file_size)
    return archive.read(member)
