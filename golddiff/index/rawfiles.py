"""Files of numbers, location after location, written and read in place.

Plain reads and writes, no mappings: the pages of a mapping would count as resident.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.index.layout import Column


@contextlib.contextmanager
def opened(folder: Path, column: Column) -> Iterator[int]:
    """The file of a column, of its full size, made where it is missing."""
    descriptor = os.open(folder / column.name, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if os.fstat(descriptor).st_size != column.bytes:
            os.ftruncate(descriptor, column.bytes)
        yield descriptor
    finally:
        os.close(descriptor)


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
    data, place = numbers.data.cast("B"), t * column.line
    while len(data):
        got = os.preadv(file, [data], place)
        if got == 0:
            raise OSError(errno.EIO, "a file of the index ends too soon")
        data, place = data[got:], place + got
    return numbers


def _write_at(file: int, numbers: NDArray[Any], place: int) -> None:
    data = np.ascontiguousarray(numbers).data.cast("B")
    while len(data):
        written = os.pwrite(file, data, place)
        data, place = data[written:], place + written
