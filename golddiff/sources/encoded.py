"""A source of encoded images: files, zip members, rows of a table."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import ArgumentError, GoldDiffError, SourceError
from golddiff.sources.ahead import ahead, rebatch
from golddiff.sources.base import Batch, Skipped, SourceInfo
from golddiff.sources.decode import Header, UnreadableImageError, decode, one_line, read_header
from golddiff.sources.options import Options, require_integer

# Headers looked at to tell whether the images are grey.
_PROBED = 64

# What one thread works on at a time: enough to outweigh the hand-over. Rows of a table hold their
# encoded bytes while they wait, so few enough that photographs of megabytes do not pile up.
_CHUNK_BYTES = 1 << 23
_CHUNK_EXAMPLES = 32


class Item(NamedTuple):
    """One encoded image: its name for messages, and how to get its bytes."""

    name: str
    load: Callable[[], bytes]


class Listing(NamedTuple):
    """The encoded images of one source, in order.

    Attributes:
        items: starts a fresh pass over the images.
        total: how many there are.
        labels: (total,) int64, or None.
        class_names: a name for each class index, or None.
        description: one line for the manifest.
        part: for a range of the images, what starts a pass over these alone, without reading the
            others; it can be sent to another process. None where there is no such thing.
    """

    items: Callable[[], Iterator[Item]]
    total: int
    labels: NDArray[np.int64] | None
    class_names: tuple[str, ...] | None
    description: str
    part: Callable[[int, int], Callable[[], Iterator[Item]]] | None = None


class _Decoded(NamedTuple):
    pixels: NDArray[np.uint8]
    positions: NDArray[np.int64]
    failures: list[tuple[str, str]]


class EncodedSource:
    """Images that are decoded as they are read, by a few threads ahead of the reader.

    Raises:
        SourceError: there are no images, or the first ones cannot be read.
        ArgumentError: the labels given do not fit.
    """

    info: SourceInfo
    skipped: Skipped

    def __init__(self, listing: Listing, options: Options) -> None:
        if listing.total == 0:
            raise SourceError(f"{listing.description} holds no images")
        own = options.own_labels(listing.total)
        self._labels = listing.labels if own is None else own
        self._items = listing.items
        self._part = listing.part
        self._options = options
        self._count = options.limited(listing.total)
        self._guessed_grey = False
        self.skipped = Skipped()
        self.info = SourceInfo(
            shape=self._probed_shape(listing.description),
            dtype=np.dtype(np.uint8),
            labelled=self._labels is not None,
            class_names=listing.class_names if own is None else None,
            count=None if options.skip_bad else self._count,
            description=listing.description,
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order: pixels (b, C, H, W) uint8 and labels (b,) or None.

        Raises:
            SourceError: an image cannot be read (without ``skip_bad``), its size differs from
                the others', or none could be read.
        """
        require_integer("size", size, least=1)
        self.skipped.names.clear()
        self.skipped.reasons.clear()
        return rebatch(self._pieces(), size)

    def part(self, start: int, stop: int) -> EncodedSource:
        """The images from ``start`` to ``stop`` as a source of their own, alike in all else.

        It can be sent to another process, which must find the same files.

        Raises:
            ArgumentError: a source whose images cannot be reached without reading those before.
        """
        if self._part is None:
            raise ArgumentError(
                f"source: {self.info.description} cannot be read in parts; expected a folder of "
                "images or of parquet files, or a parquet file"
            )
        part = copy.copy(self)
        part._items, part._part = self._part(start, stop), None
        part._labels = None if self._labels is None else self._labels[start:stop]
        part._options = replace(self._options, labels=None, limit=None)
        part._count = stop - start
        part.skipped = Skipped()
        part.info = replace(self.info, count=None if self._options.skip_bad else part._count)
        return part

    @property
    def total(self) -> int:
        """How many images are to be read, those that cannot be read among them."""
        return self._count

    def _limited_items(self) -> Iterator[Item]:
        return itertools.islice(self._items(), self._count)

    def _probed_shape(self, description: str) -> tuple[int, int, int]:
        """Settle the shape, and the name that a later image of another size is held against."""
        size, channels = self._options.size, self._options.channels
        wanted = 1 if channels is not None else _PROBED
        headers: list[tuple[str, Header]] = []
        failures = Skipped()
        for seen, item in enumerate(self._limited_items()):
            if seen >= wanted and headers:
                break
            try:
                headers.append((item.name, read_header(_load(item))))
            except UnreadableImageError as error:
                if not self._options.skip_bad:
                    raise _unreadable(item.name, error) from error
                failures.add(item.name, str(error))
        if not headers:
            raise _nothing_readable(description, failures)
        self._first, first = headers[0]
        if channels is None:
            self._guessed_grey = all(header.grey for _, header in headers)
            channels = 1 if self._guessed_grey else 3
        if size is not None:
            return channels, size, size
        for name, header in headers:
            if (header.width, header.height) != (first.width, first.height):
                raise _mixed(
                    self._first, (first.width, first.height), name, (header.width, header.height)
                )
        return channels, first.height, first.width

    def _pieces(self) -> Iterator[tuple[NDArray[np.generic], NDArray[np.int64] | None]]:
        bytes_each = int(np.prod(self.info.shape))
        length = max(1, min(_CHUNK_EXAMPLES, _CHUNK_BYTES // bytes_each))
        found = 0
        for chunk in ahead(self._decode, _chunks(self._limited_items(), length)):
            for name, reason in chunk.failures:
                self.skipped.add(name, reason)
            found += len(chunk.pixels)
            yield chunk.pixels, None if self._labels is None else self._labels[chunk.positions]
        if found and found + len(self.skipped) != self._count:
            raise SourceError(
                f"{self.info.description} is damaged: it tells of {self._count:,} images and holds "
                f"{found + len(self.skipped):,}"
            )
        if not found:
            raise _nothing_readable(self.info.description, self.skipped)

    def _decode(self, chunk: list[tuple[int, Item]]) -> _Decoded:
        channels, height, width = self.info.shape
        pixels = np.empty((len(chunk), channels, height, width), np.uint8)
        positions: list[int] = []
        failures: list[tuple[str, str]] = []
        # Where grey was guessed from the first images, each is decoded as it is, so that a
        # later one in colour is noticed rather than silently made grey.
        asked = None if self._guessed_grey else channels
        for position, item in chunk:
            try:
                image = decode(_load(item), channels=asked, size=self._options.size)
            except UnreadableImageError as error:
                if not self._options.skip_bad:
                    raise _unreadable(item.name, error) from error
                failures.append((item.name, str(error)))
                continue
            if image.shape[1:] != (height, width):
                raise _mixed(self._first, (width, height), item.name, image.shape[:0:-1])
            if image.shape[0] != channels:
                raise SourceError(
                    f"{item.name} is in colour, the first {_PROBED} images are grey; say "
                    "channels=3 to read all in colour, or channels=1 to read all in grey"
                )
            pixels[len(positions)] = image
            positions.append(position)
        return _Decoded(pixels[: len(positions)], np.array(positions, np.int64), failures)


def _chunks(items: Iterator[Item], length: int) -> Iterator[list[tuple[int, Item]]]:
    numbered = enumerate(items)
    while chunk := list(itertools.islice(numbered, length)):
        yield chunk


def _load(item: Item) -> bytes:
    try:
        return item.load()
    except (GoldDiffError, RuntimeError) as error:
        # zipfile raises RuntimeError for encrypted members and for unknown compressions.
        raise UnreadableImageError(one_line(error)) from error
    except Exception as error:
        # What unpacks raises nearly anything on damaged data.
        raise UnreadableImageError(f"it cannot be read: {one_line(error)}") from error


def _unreadable(name: str, error: UnreadableImageError) -> SourceError:
    return SourceError(
        f"cannot read image {name}: {error} (skip_bad=True leaves unreadable images out)"
    )


def _nothing_readable(description: str, failures: Skipped) -> SourceError:
    return SourceError(
        f"none of the {len(failures)} images of {description} can be read; "
        f"the first, {failures.names[0]}: {failures.reasons[0]}"
    )


def _mixed(
    first: str, first_size: tuple[int, ...], odd: str, odd_size: tuple[int, ...]
) -> SourceError:
    return SourceError(
        f"images differ in size: {first} is {first_size[0]}x{first_size[1]}, {odd} is "
        f"{odd_size[0]}x{odd_size[1]} (width x height); say size= to scale and crop them all"
    )
