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
from typing import IO

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import ArgumentError, SourceError
from golddiff.sources.ahead import ahead, rebatch
from golddiff.sources.augment import NUMBERS, augmented
from golddiff.sources.base import Batch, Source, SourceInfo
from golddiff.sources.builtin import ENLARGED
from golddiff.sources.options import Options, require_integer
from golddiff.sources.stores import StoreSource

BLOCK = 256  # images that share a generator and are made together
REDRAWN = 4  # after so many tries an image that has been made before gets a little noise

Pieces = Iterator[tuple[NDArray[np.generic], NDArray[np.int64] | None]]


class EnlargedSource:
    """The images of a source, then changed copies of them in the same order, again and again.

    Image i of a set of n is a copy of image i mod n; the first n are unchanged. Every image depends
    on the source, the seed and those before it alone, so the first images of a longer set are those
    of a shorter one. No changed copy equals an image before it. Labels go along.

    Args:
        source: uint8 images of 1 or 3 channels, read once.
        options: ``limit``, the number of images, which must be given; ``seed``.

    Raises:
        ArgumentError: no limit.
        SourceError: other images.
    """

    def __init__(self, source: Source, options: Options) -> None:
        info = source.info
        if options.limit is None:
            raise ArgumentError(
                f"limit is not given; {ENLARGED} needs the number of images to make (--limit)"
            )
        if info.dtype != np.uint8 or len(info.shape) != 3 or info.shape[0] not in (1, 3):
            raise SourceError(
                f"{ENLARGED} {info.description} holds {info.dtype} values of shape {info.shape}; "
                "only uint8 images of 1 or 3 channels can be enlarged"
            )
        self._source = source
        self._seed = options.seed
        self._limit: int = options.limit
        self.skipped = source.skipped
        self.info = SourceInfo(
            shape=info.shape,
            dtype=info.dtype,
            labelled=info.labelled,
            class_names=info.class_names,
            count=self._limit,
            description=f"enlarged (crops, flips, colours; seed {self._seed}): {info.description}",
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order, ``size`` at a time.

        Raises:
            SourceError: the source fails, or is empty.
        """
        require_integer("size", size, least=1)
        return rebatch(self._pieces(), size)

    def _pieces(self) -> Pieces:
        with tempfile.TemporaryFile() as file:
            kept = _Kept(self._source, file)
            left = self._limit
            seen: set[bytes] = set()
            for pixels, labels in kept.first():
                seen.update(_digest(image) for image in pixels[:left])
                yield pixels[:left], None if labels is None else labels[:left]
                left -= min(left, len(pixels))
                if left == 0:
                    return
            if kept.count == 0:
                raise SourceError(f"source: {self._source.info.description} holds no images")
            again = 1
            while left > 0:
                for start, made, labels in self._changed(kept, again, left):
                    for place, image in enumerate(made):
                        made[place] = self._unlike(seen, image, again, start + place, kept)
                    yield made, labels
                    left -= len(made)
                again += 1

    def _changed(
        self, kept: _Kept, again: int, most: int
    ) -> Iterator[tuple[int, NDArray[np.uint8], NDArray[np.int64] | None]]:
        """Changed copies of all images, at most so many, by the block."""

        def block(start: int) -> NDArray[np.uint8]:
            generator = np.random.default_rng([self._seed, again, start // BLOCK])
            images = kept.read(start, min(start + BLOCK, kept.count))
            return augmented(images, generator.random((BLOCK, NUMBERS))[: len(images)])

        starts = range(0, min(kept.count, most), BLOCK)
        for start, made in zip(starts, ahead(block, starts), strict=True):
            wanted = made[: most - start]
            labels = None if kept.labels is None else kept.labels[start : start + len(wanted)]
            yield start, wanted, labels

    def _unlike(
        self, seen: set[bytes], image: NDArray[np.uint8], again: int, row: int, kept: _Kept
    ) -> NDArray[np.uint8]:
        """The image, or another copy of the same original where it was there before."""
        attempt = 0
        while (digest := _digest(image)) in seen:
            attempt += 1
            generator = np.random.default_rng([self._seed, again, row, attempt])
            image = augmented(kept.read(row, row + 1), generator.random((1, NUMBERS)))[0]
            if attempt >= REDRAWN:  # a picture of one colour has few changed copies
                noise = generator.integers(-attempt, attempt + 1, image.shape)
                image = np.clip(image + noise, 0, 255).astype(np.uint8)
        seen.add(digest)
        return image


class _Kept:
    """The original images, read once and kept where they can be read again: a file.

    Those of a store stay where they are.
    """

    def __init__(self, source: Source, file: IO[bytes]) -> None:
        self._source = source
        self._file = file
        self._lock = threading.Lock()
        self.count = 0
        self.labels: NDArray[np.int64] | None = None
        self.read: Callable[[int, int], NDArray[np.uint8]] = self._from_file

    def first(self) -> Pieces:
        """The originals; all of them are kept once this has ended."""
        labels: list[NDArray[np.int64]] = []
        stored = isinstance(self._source, StoreSource)
        for batch in self._source.batches(BLOCK):
            if not stored:
                self._file.write(np.ascontiguousarray(batch.pixels).data)
            self.count += len(batch.pixels)
            if batch.labels is not None:
                labels.append(batch.labels)
            yield batch
        self.labels = np.concatenate(labels) if labels else None
        if isinstance(self._source, StoreSource):
            self.read = self._source.pixels  # type: ignore[assignment]

    def _from_file(self, start: int, stop: int) -> NDArray[np.uint8]:
        shape = self._source.info.shape
        each = int(np.prod(shape))
        with self._lock:
            self._file.seek(start * each)
            data = self._file.read((stop - start) * each)
        return np.frombuffer(bytearray(data), np.uint8).reshape(stop - start, *shape)


def open_enlarged(text: str, options: Options, opened: Callable[[str, Options], Source]) -> Source:
    """Open ``enlarged:PATH``.

    Args:
        text: with the prefix; PATH is a store, or any other source.
        options: ``limit`` and ``seed`` are of the enlarged set, the others of the source.
        opened: opens the source.

    Raises:
        ArgumentError: no source, no limit, or an option that does not apply.
        SourceError: the source cannot be read, or enlarged.
    """
    name = text.removeprefix(ENLARGED)
    if not name or name.startswith(ENLARGED):
        raise ArgumentError(f"source is {text!r}; give a store or another source after {ENLARGED}")
    if options.limit is None:
        raise ArgumentError(
            f"limit is not given; {ENLARGED} needs the number of images to make (--limit)"
        )
    return EnlargedSource(opened(name, replace(options, limit=None)), options)


def _digest(image: NDArray[np.generic]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest()
