"""Bundles: several files as one input."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import tempfile
from pathlib import Path

from reliability.fuzz.watch import unwatched

# A file that begins with this is written elsewhere and replaced by a symbolic link.
LINK = b"\0link to: "


def bundle(files: dict[str, bytes]) -> bytes:
    """Pack files, given by name, as JSON with their contents in hex."""
    return json.dumps({name: body.hex() for name, body in files.items()}).encode()


def unbundle(data: bytes) -> dict[str, bytes]:
    """The files of a bundle."""
    return {name: bytes.fromhex(text) for name, text in json.loads(data).items()}


def files_of(folder: Path) -> dict[str, bytes]:
    """The contents of all files below a folder, by relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def link_to(body: bytes) -> bytes:
    """The body that makes :func:`written` create a link to a file of this body elsewhere."""
    return LINK + body.removeprefix(LINK)


def written(files: dict[str, bytes], folder: Path) -> None:
    """Write files into a folder."""
    with unwatched():
        for name, body in files.items():
            # A name may be both a file and the folder of another file.
            with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                _write(body, folder / name)


def _write(body: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if body.startswith(LINK):
        target = _outside_folder() / hashlib.sha256(body).hexdigest()[:16]
        target.write_bytes(body.removeprefix(LINK))
        path.symlink_to(target)
    else:
        path.write_bytes(body)


@functools.cache
def _outside_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="golddiff-elsewhere-"))
