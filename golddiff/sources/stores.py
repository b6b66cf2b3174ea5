"""A store as a source: part of it as a store of its own, or what is made from its images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import ArgumentError, SourceError, StoreError
from golddiff.sources.base import Batch, Skipped, SourceInfo
from golddiff.sources.options import Options, require_integer
from golddiff.store.manifest import FORMAT, NAME
from golddiff.store.residency import at_hand, parts


def is_store(path: Path) -> bool:
    """Whether a folder is a store of golddiff's, sound or not."""
    try:
        body = json.loads((path / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(body, dict) and body.get("format") == FORMAT


class StoreSource:
    """The images of a store, in its order.

    Args:
        path: the store's folder.
        options: ``limit`` and ``labels`` apply.

    Raises:
        SourceError: the store is damaged.
        ArgumentError: an option that does not apply.
    """

    info: SourceInfo
    skipped: Skipped

    def __init__(self, path: Path, options: Options) -> None:
        from golddiff.store.images import ImageStore  # which imports the sources

        options.refuse_columns("a store")
        for name in ("size", "channels"):
            if getattr(options, name) is not None:
                raise ArgumentError(
                    f"{name}={getattr(options, name)} does not apply to a store, whose images are "
                    "as they are; index the images that it was made from"
                )
        try:
            self.store = ImageStore.open(path)
        except StoreError as error:
            raise SourceError(str(error)) from error
        own = options.own_labels(self.store.n)
        kept = None if self.store.labels is None else self.store.labels.numpy()
        self._labels: NDArray[np.int64] | None = kept if own is None else own
        self._count = options.limited(self.store.n)
        self.skipped = Skipped()
        names = None if own is not None else self.store.class_names
        self.info = SourceInfo(
            shape=self.store.shape,
            dtype=np.dtype(self.store.flat.dtype),
            labelled=self._labels is not None,
            class_names=None if names is None else tuple(names),
            count=self._count,
            description=self.store.manifest.source,
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order, as copies: pixels (b, *shape) and labels (b,) or None."""
        require_integer("size", size, least=1)
        for start in range(0, self._count, size):
            stop = min(start + size, self._count)
            labels = None if self._labels is None else self._labels[start:stop].copy()
            yield Batch(self.pixels(start, stop), labels)

    def pixels(self, start: int, stop: int) -> NDArray[np.generic]:
        """Some consecutive images as they are stored, (stop - start, *shape)."""
        out = np.empty((stop - start, self.store.d), self.info.dtype)
        for at, rows in parts(np.arange(start, stop)):
            with at_hand(self.store.flat, rows) as (flat, places):
                out[at : at + len(rows)] = flat[places]
        return out.reshape(len(out), *self.info.shape)
