"""Part of a store as a store of its own, for races that need fewer images."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from golddiff.store.images import ImageStore


@contextlib.contextmanager
def first_images(store: ImageStore, limit: int) -> Iterator[ImageStore]:
    """The first ``limit`` images, in a temporary folder that goes when the block ends."""
    with tempfile.TemporaryDirectory(prefix="golddiff-") as folder:
        pixels = store.flat[:limit].reshape(-1, *store.shape)
        labels = None if store.labels is None else store.labels[:limit]
        yield ImageStore.build(pixels, Path(folder) / "store", labels)
