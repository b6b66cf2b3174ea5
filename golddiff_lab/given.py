"""What ``--data`` names: a store, or any other source of images, which is indexed once."""

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
    """The store of a folder, or that of a source, built in the cache folder where it is missing.

    Args:
        data: path of a store, or a source as :func:`golddiff.load` takes it.
        reading: of a source.
        say: told in a line whether a store is built or used.
        progress: show a bar while building.

    Raises:
        GoldDiffError: it is neither, or cannot be read.
    """
    from golddiff.store.images import ImageStore  # imports slowly

    path = Path(data).expanduser()
    if (path / NAME).is_file():
        return ImageStore.open(path)
    return cached_store(data, reading, say=say, progress=progress)
