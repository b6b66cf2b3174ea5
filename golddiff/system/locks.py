"""Locks between processes, which go with the process that holds them, and exchanges of folders."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from golddiff.system.errors import StoreError

_EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2
_HERE = -100  # AT_FDCWD


@contextlib.contextmanager
def locked(place: Path, message: str) -> Iterator[None]:
    """Hold the lock of a file, which is made for it and taken away after.

    The system frees it when the process ends, however it ends; a file that is left then is no
    lock. A symbolic link of the file's name is not followed.
    """
    lock = FileLock(place)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise StoreError(message) from None
    try:
        yield
    finally:
        # While it is held: who waits for this file then finds that it is no longer there.
        place.unlink(missing_ok=True)
        lock.release()


def exchanged(one: Path, other: Path) -> bool:
    """Exchange two folders in one step, as Linux can; False where that cannot be done here."""
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))
