"""A set enlarged by crops, flips and changes of colour, for experiments on how cost grows.

The images look like photographs and no two are the same, but they are not new data: what they hold
beyond the set that they are made from is the augmentation.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.augment import NUMBERS, augmented
from golddiff.sources.source import Batch, Rows, Source, ahead, rebatch
from golddiff.sources.source_options import ENLARGED, SourceOptions, require_integer
from golddiff.system.errors import ArgumentError, SourceError

BLOCK = 256  # images that share a generator and are made together
REDRAWN = 4  # after so many tries an image that has been made before gets a little noise

Read = Callable[[int, int], NDArray[Any]]


def open_enlarged(
    text: str, options: SourceOptions, opened: Callable[[str, SourceOptions], Source]
) -> EnlargedSource:
    """Open ``enlarged:SOURCE``.

    Args:
        text: with the prefix.
        options: ``limit`` and ``seed`` are of the enlarged set, the others of the source.
        opened: opens the source.
    """
    name = text.removeprefix(ENLARGED)
    if not name or name.startswith(ENLARGED):
        raise ArgumentError(f"source is {text!r}; give a store or another source after {ENLARGED}")
    if options.limit is None:
        raise ArgumentError(
            f"limit is not given; {ENLARGED} needs the number of images to make (--limit)"
        )
    return EnlargedSource(opened(name, replace(options, limit=None)), options.limit, options.seed)


class EnlargedSource:
    """The images of a source, then changed copies of them in the same order, again and again.

    Image i of a set of n is a copy of image i mod n; the first n are unchanged. Every image depends
    on the source, the seed and those before it alone, so the first images of a longer set are those
    of a shorter one. No changed copy equals an image before it. Labels go along.

    Args:
        source: uint8 images of 1 or 3 channels, read once.
        limit: the number of images.
        seed: chooses the changes.
    """

    def __init__(self, source: Source, limit: int, seed: int) -> None:
        info = source.info
        if info.dtype != np.uint8 or len(info.shape) != 3 or info.shape[0] not in (1, 3):
            raise SourceError(
                f"{ENLARGED} {info.description} holds {info.dtype} values of shape {info.shape}; "
                "only uint8 images of 1 or 3 channels can be enlarged"
            )
        self._source, self._seed = source, seed
        self.skipped = source.skipped
        about = f"enlarged (crops, flips, colours; seed {seed}): {info.description}"
        self.info = replace(info, count=limit, description=about)
        self._limit = limit

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order, ``size`` at a time."""
        require_integer("size", size, least=1)
        return rebatch(self._pieces(), size)

    def _pieces(self) -> Iterator[Batch]:
        with tempfile.TemporaryFile() as file:
            seen: set[bytes] = set()
            labels: list[NDArray[np.int64]] = []
            count = 0
            for batch in self._source.batches(BLOCK):
                batch = batch.part(0, self._limit - count)
                if not isinstance(self._source, Rows):  # which can be read again from any place
                    file.write(np.ascontiguousarray(batch.pixels).data)
                seen.update(_digest(image) for image in batch.pixels)
                labels += [] if batch.labels is None else [batch.labels]
                count += len(batch.pixels)
                yield batch
                if count == self._limit:
                    return
            source = self._source
            read = source.pixels if isinstance(source, Rows) else _from(file, self.info.shape)
            known = np.concatenate(labels) if labels else None
            for first in range(count, self._limit, count):
                yield from self._changed(read, known, count, first, seen)

    def _changed(
        self, read: Read, labels: NDArray[np.int64] | None, count: int, first: int, seen: set[bytes]
    ) -> Iterator[Batch]:
        """Changed copies of the images, by the block; ``first`` is the place of the first."""
        again, most = first // count, min(count, self._limit - first)

        def block(start: int) -> NDArray[np.uint8]:
            generator = np.random.default_rng([self._seed, again, start // BLOCK])
            images = read(start, min(start + BLOCK, count))
            return augmented(images, generator.random((BLOCK, NUMBERS))[: len(images)])

        starts = range(0, most, BLOCK)
        for start, made in zip(starts, ahead(block, starts), strict=True):
            made = made[: most - start]
            for i, image in enumerate(made):
                made[i] = self._unlike(seen, image, again, start + i, read)
            yield Batch(made, None if labels is None else labels[start : start + len(made)])

    def _unlike(
        self, seen: set[bytes], image: NDArray[np.uint8], again: int, row: int, read: Read
    ) -> NDArray[np.uint8]:
        """The image, or another copy of the same original where it was there before."""
        attempt = 0
        while (digest := _digest(image)) in seen:
            attempt += 1
            generator = np.random.default_rng([self._seed, again, row, attempt])
            image = augmented(read(row, row + 1), generator.random((1, NUMBERS)))[0]
            if attempt >= REDRAWN:  # a picture of one colour has few changed copies
                noise = generator.integers(-attempt, attempt + 1, image.shape)
                image = np.clip(image + noise, 0, 255).astype(np.uint8)
        seen.add(digest)
        return image


def _from(file: IO[bytes], shape: tuple[int, ...]) -> Read:
    """Reads images from a file of them."""
    each, lock = int(np.prod(shape)), threading.Lock()

    def read(start: int, stop: int) -> NDArray[np.uint8]:
        with lock:
            file.seek(start * each)
            data = bytearray(file.read((stop - start) * each))
        return np.frombuffer(data, np.uint8).reshape(stop - start, *shape)

    return read


def _digest(image: NDArray[np.generic]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest()
