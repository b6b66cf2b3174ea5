"""A source of encoded images: files, zip members, rows of a table."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from golddiff.sources.decode import Header, UnreadableImageError, decode, read_header
from golddiff.sources.source import Batch, Skipped, SourceInfo, ahead, chosen_labels, rebatch
from golddiff.sources.source_options import SourceOptions, require_integer
from golddiff.system.errors import GoldDiffError, SourceError, one_line

# Headers read to find out whether the images are grey.
_PROBED = 64

# What one thread works on at a time: enough to outweigh the hand-over. Rows of a table hold their
# encoded bytes while they wait, so few enough that photographs of megabytes do not pile up.
_CHUNK_BYTES = 1 << 23
_CHUNK_EXAMPLES = 32


class Item(NamedTuple):
    """One encoded image: its name for messages, and how to get its bytes."""

    name: str
    load: Callable[[], bytes]


Items = Callable[[int, int], Iterator[Item]]


class EncodedSource:
    """Images that are decoded as they are read, by a few threads ahead of the reader.

    Args:
        items: starts a pass over the images from a start to a stop. Where it can be sent to
            another process, so can the source.
        total: how many there are.
        options: how they are read.
        description: one line for the manifest.
        labels: (total,) int64, or None.
        class_names: a name for each class index, or None.

    Attributes:
        total: how many are to be read, those that cannot be read among them.

    Raises:
        SourceError: there are no images, or the first ones cannot be read.
        ArgumentError: the labels given do not fit.
    """

    def __init__(
        self,
        items: Items,
        total: int,
        options: SourceOptions,
        description: str,
        labels: NDArray[np.int64] | None = None,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        if total == 0:
            raise SourceError(f"{description} holds no images")
        self._labels, class_names = chosen_labels(options, total, labels, class_names)
        self._items, self._start, self.total = items, 0, options.limited(total)
        self._size, self._skip_bad = options.size, options.skip_bad
        self.skipped = Skipped()
        self.info = SourceInfo(
            self._probed_shape(options.channels, description), np.dtype(np.uint8),
            self._labels is not None, class_names, None if options.skip_bad else self.total,
            description,
        )  # fmt: skip

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

        Those before are not read. It can be sent to another process that finds the same files.
        """
        part = copy.copy(self)
        part._start, part.total, part.skipped = self._start + start, stop - start, Skipped()
        part._labels = None if self._labels is None else self._labels[start:stop]
        part.info = replace(self.info, count=None if self._skip_bad else part.total)
        return part

    def _passed(self) -> Iterator[Item]:
        return self._items(self._start, self._start + self.total)

    def _probed_shape(self, channels: int | None, description: str) -> tuple[int, int, int]:
        """Settle the shape, and the name that a later image of another size is held against."""
        wanted = 1 if channels is not None else _PROBED
        headers: list[tuple[str, Header]] = []
        failures = Skipped()
        for seen, item in enumerate(self._passed()):
            if seen >= wanted and headers:
                break
            try:
                headers.append((item.name, read_header(_load(item))))
            except UnreadableImageError as error:
                self._leave_out(failures, item.name, error)
        if not headers:
            raise _nothing_readable(description, failures)
        self._first, first = headers[0]
        self._guessed_grey = channels is None and all(header.grey for _, header in headers)
        channels = channels or (1 if self._guessed_grey else 3)
        if self._size is not None:
            return channels, self._size, self._size
        for name, header in headers:
            if header[:2] != first[:2]:
                raise _mixed(self._first, first[:2], name, header[:2])
        return channels, first.height, first.width

    def _pieces(self) -> Iterator[Batch]:
        bytes_each = int(np.prod(self.info.shape))
        length = max(1, min(_CHUNK_EXAMPLES, _CHUNK_BYTES // bytes_each))
        numbered = enumerate(self._passed())
        chunks = iter(lambda: list(itertools.islice(numbered, length)), [])
        found = 0
        for batch, failures in ahead(self._decode, chunks):
            for name, reason in zip(failures.names, failures.reasons, strict=True):
                self.skipped.add(name, reason)
            found += len(batch.pixels)
            yield batch
        if found and found + len(self.skipped) != self.total:
            raise SourceError(
                f"{self.info.description} is damaged: it announces {self.total:,} images and holds "
                f"{found + len(self.skipped):,}"
            )
        if not found:
            raise _nothing_readable(self.info.description, self.skipped)

    def _decode(self, chunk: list[tuple[int, Item]]) -> tuple[Batch, Skipped]:
        channels, height, width = self.info.shape
        pixels = np.empty((len(chunk), channels, height, width), np.uint8)
        rows: list[int] = []
        failures = Skipped()
        # Where grey was guessed from the first images, each is decoded as it is, so that a
        # later one in colour is noticed rather than silently made grey.
        asked = None if self._guessed_grey else channels
        for row, item in chunk:
            try:
                image = decode(_load(item), channels=asked, size=self._size)
            except UnreadableImageError as error:
                self._leave_out(failures, item.name, error)
                continue
            if image.shape[1:] != (height, width):
                raise _mixed(self._first, (width, height), item.name, image.shape[:0:-1])
            if image.shape[0] != channels:
                raise SourceError(
                    f"{item.name} is in colour, the first {_PROBED} images are grey; say "
                    "channels=3 to read all in colour, or channels=1 to read all in grey"
                )
            pixels[len(rows)] = image
            rows.append(row)
        labels = None if self._labels is None else self._labels[rows]
        return Batch(pixels[: len(rows)], labels), failures

    def _leave_out(self, failures: Skipped, name: str, error: UnreadableImageError) -> None:
        if not self._skip_bad:
            raise SourceError(
                f"cannot read image {name}: {error} (skip_bad=True leaves unreadable images out)"
            ) from error
        failures.add(name, str(error))


def _load(item: Item) -> bytes:
    try:
        return item.load()
    except (GoldDiffError, RuntimeError) as error:
        # zipfile raises RuntimeError for encrypted members and for unknown compressions.
        raise UnreadableImageError(one_line(error)) from error
    except Exception as error:
        # What unpacks raises nearly anything on damaged data.
        raise UnreadableImageError(f"it cannot be read: {one_line(error)}") from error


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
