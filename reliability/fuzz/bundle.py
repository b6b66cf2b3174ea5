"""Several files as one input."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import tempfile
from pathlib import Path

from reliability.fuzz.watch import unwatched

# A file that begins with this is put elsewhere, and a symbolic link to it in its place.
LINK = b"\0link to: "


def bundle(files: dict[str, bytes]) -> bytes:
    """Names and contents, as text that any seed can be kept in."""
    return json.dumps({name: body.hex() for name, body in files.items()}).encode()


def unbundle(data: bytes) -> dict[str, bytes]:
    """The files of a bundle."""
    return {name: bytes.fromhex(text) for name, text in json.loads(data).items()}


def files_of(folder: Path) -> dict[str, bytes]:
    """All files below a folder, by path."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


def linked(body: bytes) -> bytes:
    """The contents of a file that is to be a link to a file of these, elsewhere."""
    return LINK + body.removeprefix(LINK)


def written(files: dict[str, bytes], folder: Path) -> None:
    """Put them in a folder."""
    with unwatched():
        for name, body in files.items():
            # One name may be a folder in another: no disk has both.
            with contextlib.suppress(FileExistsError, NotADirectoryError, IsADirectoryError):
                _write(body, folder / name)


def _write(body: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if body.startswith(LINK):
        target = _elsewhere() / hashlib.sha256(body).hexdigest()[:16]
        target.write_bytes(body.removeprefix(LINK))
        path.symlink_to(target)
    else:
        path.write_bytes(body)


@functools.cache
def _elsewhere() -> Path:
    return Path(tempfile.mkdtemp(prefix="golddiff-elsewhere-"))
