"""Sources that decode one example at a time: files, zip members, rows of a table, list items.

An example is an encoded image, a Pillow image or an array.
"""

from __future__ import annotations

import copy
import itertools
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader, Dataset

from golddiff.sources.arrays import as_array, is_array, open_array
from golddiff.sources.decode import UnreadableImageError, decode, read_file, read_header, to_pixels
from golddiff.sources.source import (
    Batch,
    Rows,
    Skipped,
    SourceInfo,
    chosen_labels,
    map_ahead,
    rebatch,
)
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError, SourceError, one_line, printable
from golddiff.system.numbers import check_count

# Number of examples that decide whether the images are grey.
_PROBES = 64

# Limits of the chunk that a thread decodes: large enough to outweigh the hand-over, and small
# enough for table rows, which hold photographs of megabytes as encoded bytes while they wait.
_CHUNK_BYTES = 1 << 23
_CHUNK_EXAMPLES = 32


class Item(NamedTuple):
    """One example that is not loaded yet."""

    name: str  # for messages
    load: Callable[[], Any]  # returns bytes of an encoded image, a Pillow image, array or tensor
    label: Any = None
    file: str | None = None


class ExampleSource:
    """A source that decodes examples as they are read; a few threads run ahead of the reader.

    The constructor probes the first examples for shape, type and colour.

    Args:
        items: ``items(start, stop)`` iterates over these examples. The source can be pickled if
            ``items`` can.
        total: number of examples, unreadable ones included.
        options, description, class_names: as in :class:`Rows`.
        labels: (total,) class indices, or None to use the labels of the items.
    """

    def __init__(
        self,
        items: Callable[[int, int], Iterator[Item]],
        total: int,
        options: SourceOptions,
        description: str,
        labels: Any = None,
        class_names: tuple[str, ...] | None = None,
    ) -> None:
        if total == 0:
            raise SourceError(f"{description} holds no images")
        self._labels, class_names = chosen_labels(options, total, labels, class_names, description)
        self._items, self._start, self.total = items, 0, options.limited(total)
        self._options = replace(options, labels=None, limit=None)
        self.skipped, self.names = Skipped(), list[str]()
        self._first, self._grey_inferred = self._probe(description)
        self.info = replace(self._first, class_names=class_names, description=description)

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order: pixels (b, *shape) and labels (b,) or None.

        Raises:
            SourceError: an example cannot be read (without ``skip_bad``) or differs in shape or
                type from the first, or no example can be read.
        """
        check_count("size", size)
        self.skipped.clear()
        self.names.clear()
        return rebatch(self._decoded_chunks(), size)

    def part(self, start: int, stop: int) -> ExampleSource:
        """A source of the examples ``start`` to ``stop`` only; another process can read it."""
        part = copy.copy(self)
        part._start, part.total = self._start + start, stop - start
        part.skipped, part.names = Skipped(), []
        part._labels = None if self._labels is None else self._labels[start:stop]
        return part

    def _own_items(self) -> Iterator[Item]:
        items = self._items(self._start, self._start + self.total)
        if self._labels is None:
            return items
        labelled = zip(items, self._labels, strict=False)
        return (item._replace(label=label) for item, label in labelled)

    def _probe(self, description: str) -> tuple[SourceInfo, bool]:
        """The first example's properties, and whether grey was inferred from the first few."""
        count = 1 if self._options.channels is not None else _PROBES
        probes: list[tuple[SourceInfo, bool | None]] = []
        failures = Skipped()
        for tried, item in enumerate(self._own_items()):
            if tried >= count and probes:
                break
            try:
                probes.append(self._probe_item(item))
            except UnreadableImageError as error:
                self._skip(failures, item.name, error)
        if not probes:
            raise _nothing_readable(description, failures)
        first, first_grey = probes[0]
        for info, grey in probes:
            is_same = (info.shape, info.dtype) == (first.shape, first.dtype)
            if (grey is None) == (first_grey is None) and not is_same:
                raise _mismatch(first, info.description, info.shape, info.dtype)
        if first_grey is None:
            return first, False
        inferred = self._options.channels is None and all(grey for _, grey in probes)
        channels = self._options.channels or (1 if inferred else 3)
        return replace(first, shape=(channels, *first.shape[1:])), inferred

    def _probe_item(self, item: Item) -> tuple[SourceInfo, bool | None]:
        """The properties of one example, and whether it is grey, or None for an array."""
        loaded, labelled = _load(item), item.label is not None
        if is_array(loaded):
            return replace(self._array_source(item, loaded).info, labelled=labelled), None
        header, side = read_header(loaded), self._options.size
        shape = (3, side or header.height, side or header.width)
        info = SourceInfo(shape, np.dtype(np.uint8), labelled, True, description=item.name)
        return info, header.grey

    def _array_source(self, item: Item, array: Any) -> Rows:
        return open_array(as_array(array, item.name)[None], self._options, item.name)

    def _decoded_chunks(self) -> Iterator[Batch]:
        example_bytes = math.prod(self.info.shape) * self.info.dtype.itemsize
        length = max(1, min(_CHUNK_EXAMPLES, _CHUNK_BYTES // example_bytes))
        items = self._own_items()
        chunks = iter(lambda: list(itertools.islice(items, length)), [])
        has_files = False
        for batch, kept, failures in map_ahead(self._decode_chunk, chunks):
            self.names += [item.file or item.name for item in kept]
            has_files |= any(item.file is not None for item in kept)
            self.skipped += failures
            yield batch
        if not self.names:
            raise _nothing_readable(self.info.description, self.skipped)
        if not (has_files or self.skipped):
            self.names.clear()  # an example's number names it well enough

    def _decode_chunk(self, chunk: list[Item]) -> tuple[Batch, list[Item], Skipped]:
        """A chunk's images, the items that could be read, and the others."""
        pixels = np.empty((len(chunk), *self.info.shape), self.info.dtype)
        kept: list[Item] = []
        failures = Skipped()
        for item in chunk:
            try:
                pixels[len(kept)] = self._decode_item(item)
                kept.append(item)
            except UnreadableImageError as error:
                self._skip(failures, item.name, error)
        labels = None
        if self.info.labelled or any(item.label is not None for item in kept):
            labels = np.array([self._checked_label(item) for item in kept], np.int64)
        return Batch(pixels[: len(kept)], labels), kept, failures

    def _decode_item(self, item: Item) -> NDArray[Any]:
        """The pixels of one example, checked against the shape and type of the source."""
        loaded = _load(item)
        if is_array(loaded):
            pixels: NDArray[Any] = self._array_source(item, loaded).pixels(0, 1)[0]
        else:
            # If grey was inferred, images keep their own channels, so that a later image in colour
            # raises an error instead of being silently converted to grey.
            channels = None if self._grey_inferred else self.info.shape[0]
            pixels = to_pixels(decode(loaded, channels=channels, size=self._options.size))
        if pixels.shape == self.info.shape and pixels.dtype == self.info.dtype:
            return pixels
        if self._grey_inferred and pixels.shape[1:] == self.info.shape[1:]:
            raise SourceError(
                f"{item.name} is in colour, and the first {_PROBES} images are grey; say "
                "channels=3 to read all in colour, or channels=1 to read all in grey"
            )
        raise _mismatch(self._first, item.name, pixels.shape, pixels.dtype)

    def _checked_label(self, item: Item) -> int:
        if item.label is None or not self.info.labelled:
            presence = "no label" if item.label is None else "a label"
            raise SourceError(f"{item.name} has {presence}, unlike the first example")
        label = np.asarray(item.label).reshape(-1)
        if len(label) != 1 or label.dtype.kind not in "iu" or label[0] < 0:
            raise SourceError(f"{item.name} has the label {item.label!r}; give 0, 1, 2 ...")
        return int(label[0])

    def _skip(self, failures: Skipped, name: str, error: UnreadableImageError) -> None:
        if not self._options.skip_bad:
            raise SourceError(
                f"cannot read image {name}: {error} (skip_bad=True leaves unreadable images out)"
            ) from error
        failures.append((printable(name), printable(str(error))))


def _load(item: Item) -> Any:
    try:
        return item.load()
    except Exception as error:
        # Decompressors raise many types of error on damaged data.
        raise UnreadableImageError(one_line(error)) from error


def _nothing_readable(description: str, failures: Skipped) -> SourceError:
    name, reason = failures[0]
    return SourceError(
        f"none of the {len(failures)} images of {description} can be read; "
        f"the first, {name}: {reason}"
    )


def _mismatch(first: SourceInfo, name: str, shape: tuple[int, ...], dtype: Any) -> SourceError:
    if len(first.shape) == len(shape) == 3 and first.shape[1:] != shape[1:]:
        own, other = (f"{sides[2]}x{sides[1]}" for sides in (first.shape, shape))
        return SourceError(
            f"images differ in size: {first.description} is {own}, {name} is {other} (width x "
            "height); say size= to scale and crop them all"
        )
    return SourceError(
        f"images differ: {first.description} is {first.shape} {first.dtype}, {name} is {shape} "
        f"{dtype}; say size= and channels= to make them alike"
    )


def is_example_list(source: object) -> bool:
    """Whether a source is a sequence, or a Dataset or DataLoader of torch."""
    return isinstance(source, Sequence | Dataset | DataLoader)


def open_examples(examples: Any, options: SourceOptions) -> ExampleSource:
    """Open a sequence of images or (image, label) pairs; each pass reads every example again.

    ``examples`` is a sequence, a Dataset with a length, or a DataLoader of one, in batches of
    arrays. An image is a Pillow image, a path, an array or a tensor.
    """
    options.refuse("images handed over by Python")
    kind, in_batches = type(examples).__name__, not hasattr(examples, "__getitem__")
    if in_batches and examples.batch_sampler is None:
        raise ArgumentError(f"source is a {kind} with batch_size=None; give its dataset instead")
    try:
        count = len(examples.dataset if in_batches else examples)
    except (TypeError, AttributeError, NotImplementedError):
        raise ArgumentError(
            f"source is a {kind} without a length; give a list of its images, such as "
            "[row['image'] for row in dataset.take(1000)]"
        ) from None
    if count == 0:
        raise SourceError(f"source is a {kind} without examples")

    def items(start: int, stop: int) -> Iterator[Item]:
        # By index, since a Dataset need not be iterable.
        selected: Iterator[Any] = (examples[i] for i in range(start, stop))
        if in_batches or _is_only_iterable(examples):
            each = _unbatched(examples) if in_batches else examples
            selected = itertools.islice(each, start, stop)
        for position, example in enumerate(selected, start):
            yield _make_item(f"example {position}", example, kind)

    return ExampleSource(items, count, options, f"{kind} of images")


def _is_only_iterable(examples: Any) -> bool:
    """Whether it is a Dataset of torch without an index of its own, such as an IterableDataset."""
    return type(examples).__getitem__ is Dataset.__getitem__


def _unbatched(batches: Any) -> Iterator[Any]:
    for images, labels in map(_image_and_label, batches):
        if isinstance(images, dict):
            raise ArgumentError(
                "source is a DataLoader whose batches are a dict; give batches of arrays or "
                "tensors, alone or in pairs with labels"
            )
        yield from zip(images, itertools.repeat(None) if labels is None else labels, strict=False)


def _make_item(name: str, example: Any, kind: str) -> Item:
    image, label = _image_and_label(example)
    if isinstance(image, str | os.PathLike):
        path = os.path.expanduser(image)
        return Item(f"{name}, {path}", partial(read_file, path), label, path)
    if isinstance(image, Image.Image) or is_array(image):
        return Item(name, lambda: image, label)
    raise ArgumentError(
        f"source is a {kind} whose {name} is a {type(image).__name__}; give Pillow images, "
        "paths, arrays or tensors, alone or in pairs with a label"
    )


def _image_and_label(example: Any) -> tuple[Any, Any]:
    if isinstance(example, tuple | list) and example:
        image, label = (*example, None)[:2]  # a TensorDataset without labels gives (image,)
        return image, label
    return example, None
