"""Rows of memory-mapped files within a memory limit.

A page of a mapped file counts as process memory once it has been read. The smallest files that
together fit within the limit are read through their mapping; rows of the other files are copied,
some hundred at a time. Releasing the pages of a mapping during a scan took as long as copying.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.system.arguments import LEAST, check_number
from golddiff.system.numbers import I64
from golddiff.system.parallel import for_each

ROWS_AT_ONCE = 512  # rows that a scan copies at a time
DEFAULT_LIMIT = 2e9


class Residency:
    """The mapped files of one store, and a limit on their resident bytes, which may be changed."""

    def __init__(self, limit: float) -> None:
        self.limit = check_number("memory_limit", limit, "bytes above 0", LEAST, math.inf)
        # Only the array over a file keeps it open, so the file closes when the store is freed.
        self._files = weakref.WeakValueDictionary[int, _Mapped]()

    def map(self, path: Path, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """Map a file as a read-only array whose pages count towards the limit."""
        mapped = _Mapped(path, dtype=dtype, mode="r", shape=shape)
        mapped.residency, mapped.file = self, os.open(path, os.O_RDONLY)
        weakref.finalize(mapped, os.close, mapped.file)
        if hasattr(os, "posix_fadvise"):
            # Rows are scattered, so reading ahead is wasted.
            os.posix_fadvise(mapped.file, 0, 0, os.POSIX_FADV_RANDOM)
        self._files[id(mapped)] = mapped
        # Compiled kernels reject np.memmap: return a plain array view of the mapping.
        return np.asarray(mapped)

    def fits(self, size: int) -> bool:
        """Whether the files of at most ``size`` bytes fit within the limit together."""
        sizes = (mapped.nbytes for mapped in self._files.values())
        return sum(nbytes for nbytes in sizes if nbytes <= size) <= self.limit

    def release(self) -> None:
        """Release all resident pages; the data stay in the system's page cache."""
        for mapped in self._files.values():
            mapped._mmap.madvise(mmap.MADV_DONTNEED)  # type: ignore[attr-defined]


class _Mapped(np.memmap[Any, np.dtype[Any]]):
    """A mapping with its :class:`Residency` and file descriptor."""

    residency: Residency
    file: int

    def read(self, rows: I64) -> NDArray[Any]:
        """Read rows (k,) from the file as an array (k, D)."""
        flat = np.asarray(self)
        width = flat.strides[0]
        out = np.empty((len(rows), *flat.shape[1:]), flat.dtype)

        def read(start: int) -> None:
            part = rows[start : start + ROWS_AT_ONCE]
            # Consecutive rows are read as one piece.
            starts = np.flatnonzero(np.diff(part, prepend=part[:1] - 2) != 1)
            counts = np.diff(starts, append=len(part))
            target = out[start : start + ROWS_AT_ONCE]
            read_pieces(self.file, part[starts] * width, counts * width, target)

        try:
            for_each(read, range(0, len(rows), ROWS_AT_ONCE))
        except OSError as error:
            raise OSError(f"{self.filename} cannot be read: {error.strerror or error}") from error
        return out


def read_pieces(file: int, offsets: I64, lengths: I64, out: NDArray[Any]) -> None:
    """Fill an array with pieces of a file, given by their offsets and lengths in bytes."""
    pieces = list(zip(offsets.tolist(), lengths.tolist(), strict=True))
    if hasattr(os, "posix_fadvise"):
        # Announcing all pieces lets the disk fetch many at once, which is several times as fast.
        for offset, length in pieces:
            os.posix_fadvise(file, offset, length, os.POSIX_FADV_WILLNEED)
    buffer, filled = out.reshape(-1).view(np.uint8), 0
    for offset, length in pieces:
        if os.preadv(file, [buffer[filled : filled + length].data], offset) < length:
            raise OSError(errno.EIO, "the file ends too soon")
        filled += length


@contextlib.contextmanager
def resident_rows(flat: NDArray[Any], rows: I64) -> Iterator[tuple[NDArray[Any], I64]]:
    """Yield an array and indices to read rows (k,) of a store's array (N, D) within its limit.

    These are ``flat`` and ``rows`` themselves, or a copy of the rows (k, D) and 0, 1, ... k - 1.
    Every reader of pixels and proxies calls this for a part of the rows at a time.
    """
    base = flat.base
    mapped = base if isinstance(base, _Mapped) and base.shape == flat.shape else None
    if mapped is None or mapped.residency.fits(mapped.nbytes):
        yield flat, rows
        return
    copied = mapped.read(rows)
    copied.flags.writeable = False  # like the mapping, so that kernels compile once for both
    yield copied, np.arange(len(rows))


def parts(rows: I64, size: int = ROWS_AT_ONCE) -> Iterator[tuple[int, I64]]:
    """Consecutive parts of at most ``size`` rows, each with its start position."""
    for start in range(0, len(rows), size):
        yield start, rows[start : start + size]
