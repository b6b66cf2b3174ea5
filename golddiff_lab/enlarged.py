"""Enlarge a training set by augmentation, for experiments on how cost grows with size.

Augmented images look like photographs, but they add no new data: they are crops, flips and colour
changes of the original images.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.source import Batch, Rows, map_ahead, rebatch
from golddiff.sources.source_options import SourceOptions
from golddiff.store.build import build
from golddiff.store.images import ImageStore
from golddiff.store.opening import open_store
from golddiff.system.errors import SourceError
from golddiff_lab.augment import NUMBERS, augmented

BLOCK = 256  # images that share a random generator and are augmented together


def enlarge(
    store: ImageStore, n: int, path: Path, seed: int = 0, *, overwrite: bool = False
) -> ImageStore:
    """Build a store of n images from the images of a store and augmented copies of them.

    Raises:
        GoldDiffError: images that cannot be augmented, an existing ``path``, or a full disk.
    """
    source = EnlargedSource(open_store(store.path, SourceOptions()), n, seed)
    build(source, path, overwrite=overwrite, progress=True)
    return ImageStore.open(path)


class EnlargedSource:
    """A source of the images of a store, followed by rounds of augmented copies in the same order.

    With n originals, image i is an augmented copy of image i mod n, with its label; the first n are
    unchanged. Every image depends only on the store and the seed, so a shorter set is a prefix of a
    longer one.

    Args:
        originals: uint8 images of 1 or 3 channels (:func:`golddiff.store.opening.open_store`).
        limit: the number of images.
        seed: seed of the augmentation.
    """

    def __init__(self, originals: Rows, limit: int, seed: int) -> None:
        info = originals.info
        if info.dtype != np.uint8 or len(info.shape) != 3 or info.shape[0] not in (1, 3):
            raise SourceError(
                f"{info.description} holds {info.dtype} values of shape {info.shape}; only uint8 "
                "images of 1 or 3 channels can be enlarged"
            )
        self._originals, self.total, self._seed = originals, limit, seed
        self.skipped, self.names = originals.skipped, list[str]()
        about = f"enlarged (crops, flips, colours; seed {seed}): {info.description}"
        self.info = replace(info, description=about)

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order, ``size`` at a time."""
        return rebatch(self._pieces(), size)

    def _pieces(self) -> Iterator[Batch]:
        count = self._originals.total
        starts = range(0, self.total, BLOCK)
        for start, batch in zip(starts, self._originals.batches(BLOCK), strict=False):
            yield batch.part(0, self.total - start)
        for first in range(count, self.total, count):
            yield from self._copies(first // count, min(count, self.total - first))

    def _copies(self, repeat: int, most: int) -> Iterator[Batch]:
        """Augmented copies of the first ``most`` images, in blocks."""
        count, labels = self._originals.total, self._originals.labels

        def block(start: int) -> NDArray[np.uint8]:
            generator = np.random.default_rng([self._seed, repeat, start // BLOCK])
            images = self._originals.pixels(start, min(start + BLOCK, count))
            return augmented(images, generator.random((BLOCK, NUMBERS))[: len(images)])

        starts = range(0, most, BLOCK)
        for start, images in zip(starts, map_ahead(block, starts), strict=True):
            images = images[: most - start]
            yield Batch(images, None if labels is None else labels[start : start + len(images)])
