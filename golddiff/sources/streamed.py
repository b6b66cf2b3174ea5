"""Images that Python hands over one by one or in batches: lists, torch's Dataset and DataLoader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from golddiff.sources.arrays import as_array, ask_for_range, is_array, open_array
from golddiff.sources.decode import UnreadableImageError, decode, pixels_of, read_file
from golddiff.sources.source import Batch, Skipped, SourceInfo, ahead, chosen_labels, rebatch
from golddiff.sources.source_options import SourceOptions, require_integer
from golddiff.system.errors import ArgumentError, SourceError, one_line


def is_streamed(source: object) -> bool:
    """Whether a source is a list, or a Dataset or DataLoader of torch."""
    data = sys.modules.get("torch.utils.data")
    kinds = (list, tuple) if data is None else (list, tuple, data.Dataset, data.DataLoader)
    return isinstance(source, kinds)


class StreamedSource:
    """Examples as they come, images or (image, label) pairs; every pass reads them again.

    Args:
        examples: a list, a Dataset with a length, or a DataLoader of one, whose batches are arrays.
            An image is a Pillow image, a path, an array or a tensor.
        options: how they are read.

    Attributes:
        total: how many are to be read, those that cannot be read among them.

    Raises:
        SourceError: there are none, or none can be read.
        ArgumentError: they are no images, or the labels given do not fit.
    """

    def __init__(self, examples: Any, options: SourceOptions) -> None:
        options.refuse_columns("images handed over by Python")
        kind = type(examples).__name__
        self._examples, self._in_batches = examples, not hasattr(examples, "__getitem__")
        try:
            count = len(examples.dataset if self._in_batches else examples)
        except (TypeError, AttributeError, NotImplementedError):
            raise ArgumentError(f"source is a {kind} without a length; give one that has") from None
        if count == 0:
            raise SourceError(f"source is a {kind} without examples")
        self.total = options.limited(count)
        self._given, _ = chosen_labels(options, count, None, None)
        self._options = replace(options, labels=None, limit=None)
        self.skipped = Skipped()
        self._like: Batch | None = None
        first = next((batch for batch, _ in map(self._piece, self._passed()) if batch), None)
        if first is None:
            raise SourceError(f"none of the {self.total} images of a {kind} can be read")
        self._like = first.part(0, 1)
        self.info = SourceInfo(
            first.pixels.shape[1:],
            first.pixels.dtype,
            first.labels is not None or self._given is not None,
            count=None if options.skip_bad or self._in_batches else self.total,
            description=f"{kind} of images",
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the images in order: pixels (b, *shape) and labels (b,) or None.

        Raises:
            SourceError: an image cannot be read (without ``skip_bad``) or is of another shape.
        """
        require_integer("size", size, least=1)
        self.skipped.names.clear()
        self.skipped.reasons.clear()
        return rebatch(self._pieces(), size)

    def _passed(self) -> Iterator[tuple[int, Any]]:
        if self._in_batches:
            return enumerate(self._examples)
        return ((i, self._examples[i]) for i in range(self.total))  # all that a Dataset must have

    def _pieces(self) -> Iterator[Batch]:
        done = 0
        for place, (piece, reason) in enumerate(ahead(self._piece, self._passed())):
            if piece is None:
                self.skipped.add(f"example {place}", reason)
                done += 1
                continue
            stop = min(self.total, done + len(piece.pixels))
            labels = piece.labels if self._given is None else self._given[done:stop]
            yield Batch(piece.pixels, labels).part(0, stop - done)
            done = stop
            if done == self.total:
                return

    def _piece(self, job: tuple[int, Any]) -> tuple[Batch | None, str]:
        """One example or batch; or None, and why it cannot be read."""
        place, example = job
        paired = isinstance(example, tuple | list) and len(example) > 1
        image, label = (example[0], example[1]) if paired else (example, None)
        try:
            pixels = self._pixels(place, image)
        except UnreadableImageError as error:
            if self._options.skip_bad:
                return None, str(error)
            raise SourceError(
                f"cannot read example {place}: {error} (skip_bad=True leaves unreadable images out)"
            ) from error
        labels = None
        if label is not None and self._given is None:
            labels = np.asarray(label).reshape(-1)
            if len(labels) != len(pixels) or labels.dtype.kind not in "iu" or labels.min() < 0:
                raise SourceError(f"example {place} has the label {label!r}; give whole numbers")
            labels = labels.astype(np.int64)
        self._check_alike(place, pixels, labels)
        return Batch(pixels, labels), ""

    def _check_alike(
        self, place: int, pixels: NDArray[Any], labels: NDArray[np.int64] | None
    ) -> None:
        if self._like is None:
            return
        first, shape = self._like.pixels, pixels.shape[1:]
        if shape != first.shape[1:] or pixels.dtype != first.dtype:
            raise SourceError(
                f"images differ: the first is {first.shape[1:]} {first.dtype}, example {place} is "
                f"{shape} {pixels.dtype}; say size= and channels= to make them alike"
            )
        if (labels is None) != (self._like.labels is None):
            raise SourceError(f"example {place} differs from the first in having a label or none")

    def _pixels(self, place: int, image: Any) -> NDArray[Any]:
        options, name = self._options, f"example {place}"
        if is_array(image):
            array = as_array(image, name)
            rows = open_array(array if self._in_batches else array[None], options, name)
            if self._like is None:
                ask_for_range(rows, options)
            return rows.pixels(0, rows.count)
        try:
            if isinstance(image, Image.Image):
                return pixels_of(image, options.channels, options.size)[None]
            if isinstance(image, str | os.PathLike):
                data = read_file(os.fspath(image))
                return decode(data, channels=options.channels, size=options.size)[None]
        except (OSError, SyntaxError, ValueError) as error:
            raise UnreadableImageError(one_line(error)) from error
        kind = type(self._examples).__name__
        raise ArgumentError(
            f"source is a {kind} whose {name} is a {type(image).__name__}; give Pillow images, "
            "paths, arrays or tensors, alone or in pairs with a label"
        )
