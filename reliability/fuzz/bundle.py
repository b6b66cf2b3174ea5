"""Several files as one input."""

from __future__ import annotations

import json
from pathlib import Path


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


def written(files: dict[str, bytes], folder: Path) -> None:
    """Put them in a folder."""
    for name, body in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(body)
