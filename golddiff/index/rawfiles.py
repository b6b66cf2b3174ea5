"""Files of numbers, location after location, written and read in place.

Plain reads and writes, no mappings: the pages of a mapping would count as resident.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.index.layout import Column
from golddiff.kernels.reading import read_pieces
from golddiff.system.locks import FLAGS


@contextlib.contextmanager
def opened(folder: Path, column: Column) -> Iterator[int]:
    """The file of a column, of its full size, made where it is missing."""
    descriptor = os.open(folder / column.name, FLAGS, 0o644)
    try:
        if os.fstat(descriptor).st_size != column.bytes:
            os.ftruncate(descriptor, column.bytes)
        yield descriptor
    finally:
        os.close(descriptor)


class Lines:
    """A column's numbers, read a run at a time; the file stays open as long as this lives."""

    def __init__(self, folder: Path, column: Column) -> None:
        self.column = column
        self._path = folder / column.name
        self._file = os.open(self._path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        weakref.finalize(self, os.close, self._file)

    @property
    def shape(self) -> tuple[int, ...]:
        """(T, N) or (T, N, r)."""
        return self.column.shape

    def run(self, t: int, start: int, stop: int) -> NDArray[Any]:
        """Location t's images from place ``start`` to before ``stop``."""
        return self.runs(t, np.array([[start, stop]]))

    def runs(self, t: int, limits: NDArray[np.int64]) -> NDArray[Any]:
        """Several runs (start, stop) of location t, one after the other; limits (k, 2)."""
        lengths = limits[:, 1] - limits[:, 0]
        numbers = np.empty((int(lengths.sum()), *self.shape[2:]), self.column.dtype)
        each = self.column.each
        read_pieces(self._file, t * self.column.line + limits[:, 0] * each, lengths * each, numbers)
        return numbers

    def __getitem__(self, t: int) -> NDArray[Any]:
        return self.run(t, 0, self.shape[1])


def write_images(file: int, column: Column, numbers: NDArray[Any], first: int) -> None:
    """Some images' numbers of every location, (T, n, ...), from image ``first`` on."""
    for t in range(column.shape[0]):
        _write_at(file, numbers[t], t * column.line + first * column.each)


def write_location(file: int, column: Column, numbers: NDArray[Any], t: int) -> None:
    """All images' numbers of one location, (N, ...)."""
    _write_at(file, numbers, t * column.line)


def read_location(file: int, column: Column, t: int) -> NDArray[Any]:
    """All images' numbers of one location, (N, ...)."""
    numbers = np.empty(column.shape[1:], column.dtype)
    read_pieces(file, np.array([t * column.line]), np.array([column.line]), numbers)
    return numbers


def _write_at(file: int, numbers: NDArray[Any], place: int) -> None:
    data = np.ascontiguousarray(numbers).data.cast("B")
    while len(data):
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written
