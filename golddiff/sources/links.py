"""Folders that came from elsewhere must not choose what is read on this machine."""

from __future__ import annotations

import os
from pathlib import Path

from golddiff.errors import SourceError


def inside(folder: Path, path: Path) -> Path:
    """The path, where following its links does not lead out of the folder.

    Raises:
        SourceError: it does.
    """
    root, target = os.path.realpath(folder), os.path.realpath(path)
    if os.path.commonpath([root, target]) != root:
        raise SourceError(f"{path} is a symbolic link that leads out of its folder; copy the file")
    return path
