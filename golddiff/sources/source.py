"""The interface of a source of training images: shape, data type, batches in a fixed order."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError, SourceError, printable
from golddiff.system.files import readable
from golddiff.system.numbers import I64, check_count
from golddiff.system.parallel import Result, Task, iterate_in_order

log = logging.getLogger("golddiff")

SHOWN = 5  # skipped examples that a message names


class Batch(NamedTuple):
    """A run of consecutive examples."""

    # (b, *shape), C order; uint8 in 0..255, or float32 as given (images in [-1, 1])
    pixels: NDArray[np.generic]
    labels: I64 | None  # (b,) class indices, or None if the source has none

    def part(self, start: int, stop: int) -> Batch:
        """Examples ``start`` to ``stop``, as views."""
        labels = None if self.labels is None else self.labels[start:stop]
        return Batch(self.pixels[start:stop], labels)


@dataclass(frozen=True)
class SourceInfo:
    """Properties of a source that are known before it is read."""

    shape: tuple[int, ...]  # shape of one example: (C, H, W), or (D,) for plain points
    dtype: np.dtype[np.generic]  # ``uint8`` or ``float32``
    labelled: bool  # whether batches carry labels
    is_pixels: bool  # whether the range of the values is known, and mapped to [-1, 1]
    class_names: tuple[str, ...] | None = None  # one name per class index, if the source has names
    description: str = ""  # one line for the manifest and the progress bar ("folder photos")


class Skipped(list[tuple[str, str]]):
    """Names of the unreadable examples that were skipped (``skip_bad=True``), with the reasons."""

    def lines(self) -> list[str]:
        """A message for the user: the number of skipped examples, and the first few."""
        if not self:
            return []
        return [
            f"left out {len(self):,} that could not be read:",
            *(f"  {name}: {reason}" for name, reason in self[:SHOWN]),
            *([f"  and {len(self) - SHOWN:,} more"] if len(self) > SHOWN else []),
        ]


class Source(Protocol):
    """A training set that can be read once from start to end, in a fixed order."""

    info: SourceInfo
    total: int  # number of examples, with those that cannot be read or that a sampler leaves out
    skipped: Skipped
    # Names of the examples, once all are read: their files' names, or if some were skipped, what
    # tells which ones are left; empty for others
    names: list[str]

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order, ``size`` at a time (the last batch may be shorter)."""
        ...


class Rows:
    """A source with random access to its examples: an array, crops, the images of a store.

    Args:
        read: ``read(start, stop)`` returns a copy of these examples, (stop - start, *shape).
            Several threads call it.
        total: number of examples before the limit.
        shape, dtype, description, class_names: as in :class:`SourceInfo`.
        options: ``limit`` and ``labels`` apply.
        labels: the source's own (total,) class indices, or None.
        names: file name of each example, or empty.
        is_pixels: as in :class:`SourceInfo`.
    """

    def __init__(
        self,
        read: Callable[[int, int], NDArray[Any]],
        total: int,
        shape: tuple[int, ...],
        dtype: DTypeLike,
        options: SourceOptions,
        description: str,
        labels: Any = None,
        class_names: tuple[str, ...] | None = None,
        names: Sequence[str] = (),
        is_pixels: bool = True,
    ) -> None:
        self.pixels = read
        self.labels, class_names = chosen_labels(options, total, labels, class_names, description)
        self.total = options.limited(total)
        self.skipped, self.names = Skipped(), list(names[: self.total])
        self.info = SourceInfo(
            shape, np.dtype(dtype), self.labels is not None, is_pixels, class_names, description
        )

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order, as copies: pixels (b, *shape) and labels (b,) or None."""
        check_count("size", size)

        def read(start: int) -> Batch:
            stop = min(start + size, self.total)
            labels = None if self.labels is None else self.labels[start:stop].copy()
            return Batch(self.pixels(start, stop), labels)

        return map_ahead(read, range(0, self.total, size))


def chosen_labels(
    options: SourceOptions,
    total: int,
    labels: Any,
    class_names: tuple[str, ...] | None,
    description: str,
) -> tuple[I64 | None, tuple[str, ...] | None]:
    """The caller's labels, without class names, or else the source's own labels and class names.

    Raises:
        ArgumentError: the caller's labels are invalid.
        SourceError: the source's own labels are invalid.
    """
    if options.labels is not None:
        return check_labels(options.labels, total), None
    return None if labels is None else own_labels(labels, total, description), class_names


def own_labels(labels: Any, count: int, where: str) -> I64:
    """Check a source's own labels, as :func:`check_labels`; raise SourceError if they fail."""
    try:
        return check_labels(labels, count)
    except ArgumentError as error:
        raise SourceError(f"{where}: {error}") from error


def class_indices(values: NDArray[Any], where: str, required: bool) -> I64 | None:
    """Labels found in a file, if they are whole numbers of 0 or more, (N,).

    Otherwise raise SourceError if they are ``required``, else warn and return None.
    """
    if values.ndim == 1 and values.dtype.kind in "biuf":
        with np.errstate(invalid="ignore"):  # NaN becomes negative
            indices = values.astype(np.int64)
        if (indices >= 0).all() and (indices == values).all():
            return indices
    problem = f"{where} holds no class indices (one whole number, 0 or more, for each image)"
    if required:
        raise SourceError(problem)
    log.warning("%s, and is not taken for labels", printable(problem))
    return None


def check_labels(labels: Any, count: int | None = None) -> I64:
    """Convert labels (array-like or tensor) to (count,) or (any,) int64 class indices >= 0."""
    with readable("labels cannot be read as an array", ArgumentError):
        array = np.asarray(labels.detach().cpu() if hasattr(labels, "detach") else labels)
    if array.ndim != 1:
        raise ArgumentError(f"labels have shape {array.shape}; give one class for each example")
    if count is not None and len(array) != count:
        raise ArgumentError(f"{len(array)} labels were given for {count} examples")
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"labels have data type {array.dtype}; give whole numbers")
    indices = array.astype(np.int64)
    if (indices < 0).any():
        row = int(np.argmax(indices < 0))
        raise ArgumentError(f"label {row} is {array[row]}; class indices are 0 to {2**63 - 1}")
    return indices


def map_ahead(function: Callable[[Task], Result], tasks: Iterable[Task]) -> Iterator[Result]:
    """Yield ``function(task)`` for each task in order; two to four threads compute ahead.

    At most six results exist at a time, so memory stays bounded even if the consumer is slow.
    """
    workers = max(2, min(4, os.cpu_count() or 2))  # at least 2, to overlap reading
    with ThreadPoolExecutor(workers) as pool:
        yield from iterate_in_order(pool, function, tasks, workers + 2)


def rebatch(pieces: Iterable[Batch], size: int) -> Iterator[Batch]:
    """Cut and join pieces of any length into batches of ``size`` (the last may be shorter)."""
    parts: list[Batch] = []
    room = size
    for piece in pieces:
        start = 0
        while start < len(piece.pixels):
            parts.append(piece.part(start, start + room))
            start += room
            room -= len(parts[-1].pixels)
            if room == 0:
                yield _concatenate(parts)
                parts, room = [], size
    if parts:
        yield _concatenate(parts)


def _concatenate(parts: list[Batch]) -> Batch:
    labels = [batch.labels for batch in parts if batch.labels is not None]
    pixels = np.concatenate([batch.pixels for batch in parts])
    return Batch(pixels, np.concatenate(labels) if labels else None)
