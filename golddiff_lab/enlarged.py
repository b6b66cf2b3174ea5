"""A set enlarged by crops, flips and changes of colour, for experiments on how cost grows.

The images look like photographs and no two are the same, but they are not new data: what they hold
beyond the set that they are made from is the augmentation.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.source import Batch, Rows, ahead, rebatch
from golddiff.sources.source_options import SourceOptions
from golddiff.store.build import build
from golddiff.store.images import ImageStore
from golddiff.store.opening import open_store
from golddiff.system.errors import SourceError
from golddiff_lab.augment import NUMBERS, augmented

BLOCK = 256  # images that share a generator and are made together
REDRAWN = 4  # after so many tries an image that has been made before gets a little noise


def enlarge(
    store: ImageStore, n: int, path: Path, seed: int = 0, *, overwrite: bool = False
) -> ImageStore:
    """The images of a store and changed copies of them, n in all, as a new store.

    Raises:
        GoldDiffError: images that cannot be changed so; ``path`` exists; a full disk.
    """
    source = EnlargedSource(open_store(store.path, SourceOptions()), n, seed)
    build(source, path, overwrite=overwrite, progress=True)
    return ImageStore.open(path)


class EnlargedSource:
    """The images of a store, then changed copies of them in the same order, again and again.

    Image i of a set of n is a copy of image i mod n; the first n are unchanged. Every image depends
    on the store, the seed and those before it alone, so the first images of a longer set are those
    of a shorter one. No changed copy equals an image before it. Labels go along.

    Args:
        originals: uint8 images of 1 or 3 channels (:func:`golddiff.store.opening.open_store`).
        limit: the number of images.
        seed: chooses the changes.
    """

    def __init__(self, originals: Rows, limit: int, seed: int) -> None:
        info = originals.info
        if info.dtype != np.uint8 or len(info.shape) != 3 or info.shape[0] not in (1, 3):
            raise SourceError(
                f"{info.description} holds {info.dtype} values of shape {info.shape}; only uint8 "
                "images of 1 or 3 channels can be enlarged"
            )
        self._originals, self._limit, self._seed = originals, limit, seed
        self.skipped, self.names = originals.skipped, list[str]()
        about = f"enlarged (crops, flips, colours; seed {seed}): {info.description}"
        self.info = replace(info, count=limit, description=about)

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order, ``size`` at a time."""
        return rebatch(self._pieces(), size)

    def _pieces(self) -> Iterator[Batch]:
        seen: set[bytes] = set()
        count = self._originals.count
        starts = range(0, self._limit, BLOCK)
        for start, batch in zip(starts, self._originals.batches(BLOCK), strict=False):
            seen.update(_digest(image) for image in batch.pixels)
            yield batch.part(0, self._limit - start)
        for first in range(count, self._limit, count):
            yield from self._changed(first // count, min(count, self._limit - first), seen)

    def _changed(self, again: int, most: int, seen: set[bytes]) -> Iterator[Batch]:
        """Changed copies of the first images, by the block."""
        count, labels = self._originals.count, self._originals.labels

        def block(start: int) -> NDArray[np.uint8]:
            generator = np.random.default_rng([self._seed, again, start // BLOCK])
            images = self._originals.pixels(start, min(start + BLOCK, count))
            return augmented(images, generator.random((BLOCK, NUMBERS))[: len(images)])

        starts = range(0, most, BLOCK)
        for start, made in zip(starts, ahead(block, starts), strict=True):
            made = made[: most - start]
            for i, image in enumerate(made):
                made[i] = self._unlike(seen, image, again, start + i)
            yield Batch(made, None if labels is None else labels[start : start + len(made)])

    def _unlike(
        self, seen: set[bytes], image: NDArray[np.uint8], again: int, row: int
    ) -> NDArray[np.uint8]:
        """The image, or another copy of the same original where it was there before."""
        attempt = 0
        while (digest := _digest(image)) in seen:
            attempt += 1
            generator = np.random.default_rng([self._seed, again, row, attempt])
            original = self._originals.pixels(row, row + 1)
            image = augmented(original, generator.random((1, NUMBERS)))[0]
            if attempt >= REDRAWN:  # a picture of one colour has few changed copies
                noise = generator.integers(-attempt, attempt + 1, image.shape)
                image = np.clip(image + noise, 0, 255).astype(np.uint8)
        seen.add(digest)
        return image


def _digest(image: NDArray[np.generic]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest()
