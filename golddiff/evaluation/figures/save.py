"""Writing a picture, of Pillow or of matplotlib, whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from golddiff.system.files import written_whole

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")

DPI = 120


def save(name: str, picture: Any, path: Path) -> None:
    """Write a ``PIL.Image`` or a matplotlib ``Figure`` to ``path``.

    Args:
        name: the argument that ``path`` comes from, for messages.
        picture: what to write.
        path: ends in one of ``SUFFIXES``.

    Raises:
        ArgumentError: the file cannot be written.
    """
    with written_whole(name, path) as temporary:
        if hasattr(picture, "savefig"):
            picture.savefig(temporary, dpi=DPI)
        else:
            picture.save(temporary)
