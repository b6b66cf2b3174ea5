"""Locks between processes, which go with the process that holds them, and exchanges of folders."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from golddiff.system.errors import StoreError

# A store that came from elsewhere may hold a link of the lock's name.
FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
_EXCHANGE = 2  # RENAME_EXCHANGE of Linux's renameat2
_HERE = -100  # AT_FDCWD


@contextlib.contextmanager
def locked(place: Path, message: str, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock of a file, which is made for it and taken away after.

    The system frees it when the process ends, however it ends; a file that is left then is no
    lock.

    Args:
        place: the file.
        message: of the error where another process holds it.
        wait: until it is free, for work of milliseconds.

    Raises:
        StoreError: another holds it.
        OSError: the file cannot be made.
    """
    descriptor = _held(place, message, wait)
    try:
        yield
    finally:
        # While it is held: who waits for this file then finds that it is no longer there.
        place.unlink(missing_ok=True)
        os.close(descriptor)


def _held(place: Path, message: str, wait: bool) -> int:
    import fcntl

    while True:
        descriptor = os.open(place, FLAGS, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(place)):
                    return descriptor
        except BlockingIOError:
            os.close(descriptor)
            raise StoreError(message) from None
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever held it took the file away: try the one there now


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
