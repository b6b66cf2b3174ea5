"""Enlarge a training set by augmentation, for experiments on how cost grows with size.

Augmented images look like photographs and are all different, but they add no new data: they
are crops, flips and colour changes of the original images.
"""

from __future__ import annotations

import hashlib
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
REDRAWN = 4  # after this many duplicates of an image, noise is added


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
    unchanged. Every image depends only on the store, the seed and the images before it, so a
    shorter set is a prefix of a longer one. No augmented copy equals an earlier image.

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
        self.info = replace(info, count=limit, description=about)

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order, ``size`` at a time."""
        return rebatch(self._pieces(), size)

    def _pieces(self) -> Iterator[Batch]:
        seen: set[bytes] = set()
        count = self._originals.total
        starts = range(0, self.total, BLOCK)
        for start, batch in zip(starts, self._originals.batches(BLOCK), strict=False):
            seen.update(_digest(image) for image in batch.pixels)
            yield batch.part(0, self.total - start)
        for first in range(count, self.total, count):
            yield from self._copies(first // count, min(count, self.total - first), seen)

    def _copies(self, repeat: int, most: int, seen: set[bytes]) -> Iterator[Batch]:
        """Augmented copies of the first ``most`` images, in blocks."""
        count, labels = self._originals.total, self._originals.labels

        def block(start: int) -> NDArray[np.uint8]:
            generator = np.random.default_rng([self._seed, repeat, start // BLOCK])
            images = self._originals.pixels(start, min(start + BLOCK, count))
            return augmented(images, generator.random((BLOCK, NUMBERS))[: len(images)])

        starts = range(0, most, BLOCK)
        for start, images in zip(starts, map_ahead(block, starts), strict=True):
            images = images[: most - start]
            for i, image in enumerate(images):
                images[i] = self._unique(seen, image, repeat, start + i)
            yield Batch(images, None if labels is None else labels[start : start + len(images)])

    def _unique(
        self, seen: set[bytes], image: NDArray[np.uint8], repeat: int, row: int
    ) -> NDArray[np.uint8]:
        """The image if it is new, else another augmented copy of the same original."""
        attempt = 0
        while (digest := _digest(image)) in seen:
            attempt += 1
            generator = np.random.default_rng([self._seed, repeat, row, attempt])
            original = self._originals.pixels(row, row + 1)
            image = augmented(original, generator.random((1, NUMBERS)))[0]
            if attempt >= REDRAWN:  # a picture of a single colour has few distinct copies
                noise = generator.integers(-attempt, attempt + 1, image.shape)
                image = np.clip(image + noise, 0, 255).astype(np.uint8)
        seen.add(digest)
        return image


def _digest(image: NDArray[np.generic]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest()
