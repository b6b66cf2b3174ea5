"""Resolve ``--data``: a store, or any other source of images, which is indexed once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.store.cache import SourceOptions, cached_store
from golddiff.store.manifest import NAME

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore


def given_store(
    data: str, reading: SourceOptions, say: Callable[[str], None], *, progress: bool = False
) -> ImageStore:
    """Open the store at a path, or the cached store of a source, which is built if missing.

    Args:
        data: path of a store, or a source as :func:`golddiff.load` takes it.
        reading: options for reading a source.
        say: called with a message that a store is built or used.
        progress: show a progress bar while building.

    Raises:
        GoldDiffError: ``data`` is neither, or cannot be read.
    """
    from golddiff.store.images import ImageStore  # imports slowly

    path = Path(data).expanduser()
    if (path / NAME).is_file():
        return ImageStore.open(path)
    return cached_store(data, reading, say=say, progress=progress)
