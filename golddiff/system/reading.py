"""Reading many short pieces of a file from compiled code, without the interpreter's lock.

A piece takes a microsecond, and the interpreter as long again for each, one thread at a time.
"""

from __future__ import annotations

import errno
import os
from typing import Any

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

# The C library's; by name, so that what is compiled can be kept.
_pread = types.ExternalFunction(
    "pread", types.intp(types.intc, types.uintp, types.uintp, types.int64)
)


_posix_fadvise = types.ExternalFunction(
    "posix_fadvise", types.intc(types.intc, types.int64, types.int64, types.intc)
)
CAN_ADVISE = hasattr(os, "posix_fadvise")
WILL_NEED = getattr(os, "POSIX_FADV_WILLNEED", 0)
FEWEST_ADVISED = 8  # pieces; it takes half a microsecond for each


@njit(nogil=True, cache=True)
def _advise(file, places, lengths, advice):  # type: ignore[no-untyped-def]
    for i in range(len(places)):
        _posix_fadvise(file, places[i], lengths[i], advice)


@njit(nogil=True, cache=True)
def _read(file, places, lengths, out):  # type: ignore[no-untyped-def]
    at = out.ctypes.data
    for i in range(len(places)):
        place, left = places[i], lengths[i]
        while left > 0:
            got = _pread(file, at, left, place)
            if got <= 0:
                return i
            at += got
            place += got
            left -= got
    return -1


def read_pieces(
    file: int, places: NDArray[np.int64], lengths: NDArray[np.int64], out: NDArray[Any]
) -> None:
    """Read pieces of a file one after the other into an array.

    Args:
        file: descriptor.
        places: (k,) where each begins, in bytes.
        lengths: (k,) bytes of each.
        out: contiguous, of as many bytes as all together.

    Raises:
        ValueError: ``out`` has another size, or is not contiguous.
        OSError: the file ends too soon, or cannot be read.
    """
    if out.nbytes != int(lengths.sum()) or not out.flags.c_contiguous:
        raise ValueError(f"out: got {out.nbytes} bytes, expected {int(lengths.sum())}, contiguous")
    if out.nbytes == 0:
        return
    target = out.reshape(-1).view(np.uint8)
    if CAN_ADVISE and len(places) >= FEWEST_ADVISED:
        # Of what a disk has to bring it brings many at once: several times as fast as in turn.
        _advise(file, places, lengths, WILL_NEED)
    failed = _read(file, places, lengths, target)
    if failed >= 0:
        _read_slowly(file, places[failed:], lengths[failed:], target, int(lengths[:failed].sum()))


def _read_slowly(
    file: int,
    places: NDArray[np.int64],
    lengths: NDArray[np.int64],
    target: NDArray[np.uint8],
    at: int,
) -> None:
    """What could not be read, again: the interpreter knows signals and errors."""
    for place, left in zip(places.tolist(), lengths.tolist(), strict=True):
        while left > 0:
            data = os.pread(file, left, place)
            if not data:
                raise OSError(errno.EIO, "the file ends too soon")
            target[at : at + len(data)] = np.frombuffer(data, np.uint8)
            at, place, left = at + len(data), place + len(data), left - len(data)
