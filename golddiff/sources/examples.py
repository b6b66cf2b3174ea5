"""A source whose examples come one by one: files, zip members, rows of a table, items of a list.

Each is an encoded image, a Pillow image or an array, read and decoded ahead by a few threads.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from golddiff.sources.arrays import as_array, ask_for_range, is_array, open_array
from golddiff.sources.decode import UnreadableImageError, decode, read_file, read_header
from golddiff.sources.source import Batch, Rows, Skipped, SourceInfo, ahead, chosen_labels, rebatch
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError, GoldDiffError, SourceError, one_line
from golddiff.system.numbers import check_count

# Examples read to find out whether images are grey.
_PROBED = 64

# What one thread works on at a time: enough to outweigh the hand-over. Rows of a table hold their
# encoded bytes while they wait, so few enough that photographs of megabytes do not pile up.
_CHUNK_BYTES = 1 << 23
_CHUNK_EXAMPLES = 32


class Item(NamedTuple):
    """One example: its name for messages, how to get it, its label and its file where it has one.

    What is got is an encoded image (bytes), a Pillow image, or an array or tensor.
    """

    name: str
    load: Callable[[], Any]
    label: Any = None
    file: str | None = None


Items = Callable[[int, int], Iterator[Item]]


class _Look(NamedTuple):
    """What is known of an example before it is decoded; of an array, ``grey`` is None."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    grey: bool | None
    labelled: bool


class ExampleSource:
    """Examples that are decoded as they are read, by a few threads ahead of the reader.

    The first ones are looked at when it is made; ``total`` are to be read, those that cannot be
    read among them.

    Args:
        items: starts a pass over the examples from a start to a stop. Where it can be sent to
            another process, so can the source.
        total, options, description, class_names: as of :class:`Rows`.
        labels: (total,) class indices, or None; then those that the items bring.
    """

    def __init__(
        self,
        items: Items,
        total: int,
        options: SourceOptions,
        description: str,
        labels: Any = None,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        if total == 0:
            raise SourceError(f"{description} holds no images")
        self.labels, class_names = chosen_labels(options, total, labels, class_names, description)
        self._items, self._start, self.total = items, 0, options.limited(total)
        self._options = replace(options, labels=None, limit=None)
        self.skipped, self.names = Skipped(), list[str]()
        self._first, self._guessed_grey = self._probed(description)
        self.info = SourceInfo(
            self._first.shape, self._first.dtype, self.labels is not None or self._first.labelled,
            class_names, None if options.skip_bad else self.total, description,
        )  # fmt: skip

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order: pixels (b, *shape) and labels (b,) or None.

        Raises:
            SourceError: one cannot be read (without ``skip_bad``), is not like the others, or none
                could be read.
        """
        check_count("size", size)
        self.skipped.clear()
        self.names.clear()
        return rebatch(self._pieces(), size)

    def part(self, start: int, stop: int) -> ExampleSource:
        """The examples from ``start`` to ``stop`` as a source of their own, alike in all else.

        Those before are not read. It can be sent to another process that finds the same files.
        """
        part = copy.copy(self)
        part._start, part.total = self._start + start, stop - start
        part.skipped, part.names = Skipped(), []
        part.labels = None if self.labels is None else self.labels[start:stop]
        part.info = replace(self.info, count=None if self._options.skip_bad else part.total)
        return part

    def _passed(self) -> Iterator[Item]:
        return self._items(self._start, self._start + self.total)

    def _probed(self, description: str) -> tuple[_Look, bool]:
        """The first example, whose shape all have; and whether grey was guessed from some."""
        wanted = 1 if self._options.channels is not None else _PROBED
        looks: list[_Look] = []
        failures = Skipped()
        for seen, item in enumerate(self._passed()):
            if seen >= wanted and looks:
                break
            try:
                looks.append(self._look(item))
            except UnreadableImageError as error:
                self._leave_out(failures, item.name, error)
        if not looks:
            raise _nothing_readable(description, failures)
        first = looks[0]
        for look in looks:
            if (look.grey is None) == (first.grey is None) and look[1:3] != first[1:3]:
                raise _unlike(first, look.name, look.shape, look.dtype)
        if first.grey is None:
            return first, False
        guessed = self._options.channels is None and all(look.grey for look in looks)
        channels = self._options.channels or (1 if guessed else 3)
        return first._replace(shape=(channels, *first.shape[1:])), guessed

    def _look(self, item: Item) -> _Look:
        loaded, labelled = _load(item), item.label is not None
        if is_array(loaded):
            rows = self._rows(item, loaded)
            ask_for_range(rows, self._options)
            return _Look(item.name, rows.info.shape, rows.info.dtype, None, labelled)
        header, side = read_header(loaded), self._options.size
        shape = (3, side or header.height, side or header.width)
        return _Look(item.name, shape, np.dtype(np.uint8), header.grey, labelled)

    def _rows(self, item: Item, array: Any) -> Rows:
        return open_array(as_array(array, item.name)[None], self._options, item.name)

    def _pieces(self) -> Iterator[Batch]:
        bytes_each = math.prod(self.info.shape) * self.info.dtype.itemsize
        length = max(1, min(_CHUNK_EXAMPLES, _CHUNK_BYTES // bytes_each))
        numbered = enumerate(self._passed())
        chunks = iter(lambda: list(itertools.islice(numbered, length)), [])
        found = 0
        for batch, failures, names in ahead(self._decode, chunks):
            self.names += names
            self.skipped += failures
            found += len(batch.pixels)
            yield batch
        if not found:
            raise _nothing_readable(self.info.description, self.skipped)

    def _decode(self, chunk: list[tuple[int, Item]]) -> tuple[Batch, Skipped, list[str]]:
        pixels = np.empty((len(chunk), *self.info.shape), self.info.dtype)
        kept: list[tuple[int, Item]] = []
        failures = Skipped()
        for row, item in chunk:
            try:
                pixels[len(kept)] = self._pixels(item)
                kept.append((row, item))
            except UnreadableImageError as error:
                self._leave_out(failures, item.name, error)
        labels = None
        if self.labels is not None:
            labels = self.labels[[row for row, _ in kept]]
        elif self.info.labelled or any(item.label is not None for _, item in kept):
            labels = np.array([self._label(item) for _, item in kept], np.int64)
        names = [item.file for _, item in kept if item.file is not None]
        return Batch(pixels[: len(kept)], labels), failures, names

    def _pixels(self, item: Item) -> NDArray[Any]:
        """The values of one example, of the shape and type of all."""
        loaded = _load(item)
        if is_array(loaded):
            pixels: NDArray[Any] = self._rows(item, loaded).pixels(0, 1)[0]
        else:
            # Where grey was guessed from the first images, each is decoded as it is, so that a
            # later one in colour is noticed rather than silently made grey.
            channels = None if self._guessed_grey else self.info.shape[0]
            pixels = decode(loaded, channels=channels, size=self._options.size)
        if pixels.shape == self.info.shape and pixels.dtype == self.info.dtype:
            return pixels
        if self._guessed_grey and pixels.shape[1:] == self.info.shape[1:]:
            raise SourceError(
                f"{item.name} is in colour, the first {_PROBED} images are grey; say channels=3 to "
                "read all in colour, or channels=1 to read all in grey"
            )
        raise _unlike(self._first, item.name, pixels.shape, pixels.dtype)

    def _label(self, item: Item) -> int:
        if item.label is None or not self._first.labelled:
            raise SourceError(f"{item.name} differs from the first in having a label or none")
        label = np.asarray(item.label).reshape(-1)
        if len(label) != 1 or label.dtype.kind not in "iu" or label[0] < 0:
            raise SourceError(f"{item.name} has the label {item.label!r}; give whole numbers")
        return int(label[0])

    def _leave_out(self, failures: Skipped, name: str, error: UnreadableImageError) -> None:
        if not self._options.skip_bad:
            raise SourceError(
                f"cannot read image {name}: {error} (skip_bad=True leaves unreadable images out)"
            ) from error
        failures.add(name, str(error))


def _load(item: Item) -> Any:
    try:
        return item.load()
    except (GoldDiffError, RuntimeError) as error:
        # zipfile raises RuntimeError for encrypted members and for unknown compressions.
        raise UnreadableImageError(one_line(error)) from error
    except Exception as error:
        # What unpacks raises nearly anything on damaged data.
        raise UnreadableImageError(f"it cannot be read: {one_line(error)}") from error


def _nothing_readable(description: str, failures: Skipped) -> SourceError:
    name, reason = failures[0]
    return SourceError(
        f"none of the {len(failures)} images of {description} can be read; "
        f"the first, {name}: {reason}"
    )


def _unlike(first: _Look, name: str, shape: tuple[int, ...], dtype: Any) -> SourceError:
    if len(first.shape) == len(shape) == 3 and first.shape[1:] != shape[1:]:
        one, other = (f"{sides[2]}x{sides[1]}" for sides in (first.shape, shape))
        return SourceError(
            f"images differ in size: {first.name} is {one}, {name} is {other} (width x height); "
            "say size= to scale and crop them all"
        )
    return SourceError(
        f"images differ: {first.name} is {first.shape} {first.dtype}, {name} is {shape} {dtype}; "
        "say size= and channels= to make them alike"
    )


def is_listed(source: object) -> bool:
    """Whether a source is a list, or a Dataset or DataLoader of torch."""
    data = sys.modules.get("torch.utils.data")
    kinds = (list, tuple) if data is None else (list, tuple, data.Dataset, data.DataLoader)
    return isinstance(source, kinds)


def open_listed(examples: Any, options: SourceOptions) -> ExampleSource:
    """Examples as they come, images or (image, label) pairs; every pass reads them again.

    Args:
        examples: a list, a Dataset with a length, or a DataLoader of one, whose batches are arrays.
            An image is a Pillow image, a path, an array or a tensor.
        options: how they are read.
    """
    options.refuse_columns("images handed over by Python")
    kind, in_batches = type(examples).__name__, not hasattr(examples, "__getitem__")
    try:
        count = len(examples.dataset if in_batches else examples)
    except (TypeError, AttributeError, NotImplementedError):
        raise ArgumentError(f"source is a {kind} without a length; give one that has") from None
    if count == 0:
        raise SourceError(f"source is a {kind} without examples")

    def items(start: int, stop: int) -> Iterator[Item]:
        # By index alone: all that a Dataset must have.
        found: Iterator[Any] = (examples[i] for i in range(start, stop))
        if in_batches:
            found = itertools.islice(_unbatched(examples), start, stop)
        for place, example in enumerate(found, start):
            yield _item(f"example {place}", example, kind)

    source = ExampleSource(items, count, options, f"{kind} of images")
    if in_batches:  # which need not hold all of their data set
        source.info = replace(source.info, count=None)
    return source


def _unbatched(batches: Any) -> Iterator[Any]:
    for images, labels in map(_pair, batches):
        if isinstance(images, dict):
            raise ArgumentError(
                "source is a DataLoader whose batches are a dict; give batches of arrays or "
                "tensors, alone or in pairs with labels"
            )
        yield from zip(images, itertools.repeat(None) if labels is None else labels, strict=False)


def _item(name: str, example: Any, kind: str) -> Item:
    image, label = _pair(example)
    if isinstance(image, str | os.PathLike):
        path = os.fspath(image)
        return Item(f"{name}, {path}", partial(read_file, path), label, path)
    if isinstance(image, Image.Image) or is_array(image):
        return Item(name, lambda: image, label)
    raise ArgumentError(
        f"source is a {kind} whose {name} is a {type(image).__name__}; give Pillow images, "
        "paths, arrays or tensors, alone or in pairs with a label"
    )


def _pair(example: Any) -> tuple[Any, Any]:
    if isinstance(example, tuple | list) and example:
        image, label = (*example, None)[:2]  # a TensorDataset of images alone gives (image,)
        return image, label
    return example, None
