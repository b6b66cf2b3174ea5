"""Rows of mapped files within a memory limit.

A page of a mapped file counts as the process's own memory from the first read on. So the smallest
files that together fit within the limit are read through their mapping, and the others are not:
their rows are copied from the file, some hundred at a time. A scan of a mapping that gave its pages
back before the limit was passed took as long as these copies.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.system.arguments import as_number
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import I64
from golddiff.system.parallel import for_each

ROWS_AT_ONCE = 512  # what a scan copies at a time
DEFAULT_LIMIT = 2e9


class Residency:
    """The mapped files of one store, and how many of their bytes may be resident at a time.

    Args:
        limit: bytes, above 0.

    Attributes:
        limit: may be changed at any time.
    """

    def __init__(self, limit: float) -> None:
        if not as_number(limit) > 0:
            raise ArgumentError(f"memory_limit: got {limit!r}, expected bytes above 0")
        self.limit = limit
        # A file is held by the array over it alone: it goes with the store, at once.
        self._files = weakref.WeakValueDictionary[int, _Mapped]()

    def map(self, path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """A file as a read-only array whose pages count here."""
        mapped = _Mapped(path, dtype=dtype, mode="r", shape=shape)
        mapped.residency, mapped.file = self, os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(mapped, os.close, mapped.file)
        if hasattr(os, "posix_fadvise"):
            # Rows that lie apart: what is beside them is not worth reading.
            os.posix_fadvise(mapped.file, 0, 0, os.POSIX_FADV_RANDOM)
        self._files[id(mapped)] = mapped
        # A plain array view of the mapping: compiled kernels take no np.memmap.
        return np.asarray(mapped)

    def fits(self, size: int) -> bool:
        """Whether files of so many bytes or fewer are together within the limit."""
        sizes = (mapped.nbytes for mapped in self._files.values())
        return sum(each for each in sizes if each <= size) <= self.limit

    def release(self) -> None:
        """Give back every page that is resident now; the system's page cache keeps the data."""
        for mapped in self._files.values():
            mapped._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


class _Mapped(np.memmap[Any, np.dtype[Any]]):
    """A mapping that knows where its pages count."""

    residency: Residency | None = None
    file: int

    def read(self, rows: I64) -> NDArray[Any]:
        """Some rows (k, D), from the file."""
        flat = np.asarray(self)
        width = flat.strides[0]
        out = np.empty((len(rows), *flat.shape[1:]), flat.dtype)

        def read(start: int) -> None:
            some = rows[start : start + ROWS_AT_ONCE]
            # Neighbours in one go.
            starts = np.flatnonzero(np.diff(some, prepend=some[:1] - 2) != 1)
            counts = np.diff(starts, append=len(some))
            there = out[start : start + ROWS_AT_ONCE]
            read_pieces(self.file, some[starts] * width, counts * width, there)

        try:
            for_each(read, range(0, len(rows), ROWS_AT_ONCE))
        except OSError as error:
            raise OSError(f"{self.filename} cannot be read: {error.strerror or error}") from error
        return out


def read_pieces(file: int, places: I64, lengths: I64, out: NDArray[Any]) -> None:
    """Read pieces of a file, by place and length in bytes, one after the other into an array."""
    pieces = list(zip(places.tolist(), lengths.tolist(), strict=True))
    if hasattr(os, "posix_fadvise"):
        # Of what a disk has to bring it brings many at once: several times as fast as in turn.
        for place, length in pieces:
            os.posix_fadvise(file, place, length, os.POSIX_FADV_WILLNEED)
    room, at = out.reshape(-1).view(np.uint8), 0
    for place, length in pieces:
        if os.preadv(file, [room[at : at + length].data], place) < length:
            raise OSError(errno.EIO, "the file ends too soon")
        at += length


def _too_large(array: NDArray[Any]) -> _Mapped | None:
    """The mapping that an array is the whole of, where it may not be resident."""
    base = array.base
    whole = isinstance(base, _Mapped) and base.residency is not None and base.shape == array.shape
    return base if whole and not base.residency.fits(base.nbytes) else None  # type: ignore[union-attr,return-value]


def in_place(flat: NDArray[Any]) -> bool:
    """Whether any rows of a store's array can be read where they lie."""
    return _too_large(flat) is None


@contextlib.contextmanager
def resident_rows(flat: NDArray[Any], rows: I64) -> Iterator[tuple[NDArray[Any], I64]]:
    """Rows (k,) of a store's array (N, D) where a loop can read them, within its memory limit.

    Yields the two themselves, or a copy of the rows (k, D) and 0, 1, ... k - 1. Every reader of
    pixels and proxies goes through here, some hundred rows at a time.
    """
    owner = _too_large(flat)
    if owner is None:
        yield flat, rows
        return
    copied = owner.read(rows)
    copied.flags.writeable = False  # as the mapping: kernels are compiled for one of the two
    yield copied, np.arange(len(rows))


def parts(rows: I64, size: int = ROWS_AT_ONCE) -> Iterator[tuple[int, I64]]:
    """Consecutive parts of at most ``size`` rows, each with the place where it begins."""
    for start in range(0, len(rows), size):
        yield start, rows[start : start + size]
