"""Folders that came from elsewhere must not choose what is read on this machine."""

from __future__ import annotations

from pathlib import Path

from golddiff.errors import SourceError
from golddiff.system.files import leads_out


def inside(folder: Path, path: Path) -> Path:
    """The path, where following its links does not lead out of the folder.

    Raises:
        SourceError: it does.
    """
    if leads_out(folder, path):
        raise SourceError(f"{path} is a symbolic link that leads out of its folder; copy the file")
    return path
