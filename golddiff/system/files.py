"""Files: written whole or not at all, and locked; and read without trust in them.

What came from elsewhere must not fill memory, nor choose what is read on this machine.
"""

from __future__ import annotations

import bz2
import contextlib
import errno
import gzip
import lzma
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from golddiff.system.errors import (
    ArgumentError,
    GoldDiffError,
    SourceError,
    StoreError,
    one_line,
)
from golddiff.system.units import byte_size

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # or no more of it is ours
# Training sets in use unpack to at most some tens of times their size (MNIST: 5).
MOST_TIMES = 200
# What may always be unpacked, however small the file.
FREE = 64_000_000

_PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


def check_writable(name: str, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise now where writing ``path``, the argument ``name``, would fail later.

    Its folder need not exist yet; its name has to end in one of ``suffixes``, if there are any.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        raise ArgumentError(f"{name}: got {path}, expected a name ending in {', '.join(suffixes)}")
    try:
        if path.is_dir():
            raise ArgumentError(f"{name}: {path} is a folder, expected a file name")
        # The only test that holds for read-only disks, access lists and the superuser alike.
        with tempfile.TemporaryFile(dir=_first_there(path.absolute().parent)):
            pass
    except OSError as error:
        raise _unwritable(name, path, error) from error


def check_disk(name: str, path: Path, needed: float) -> None:
    """Raise now where the disk has no room for the bytes that ``path`` needs."""
    free = shutil.disk_usage(_first_there(path.absolute())).free
    if needed > free:
        raise StoreError(
            f"{name}: {path} needs about {byte_size(int(needed))}, and the disk has "
            f"{byte_size(free)} free"
        )


def _first_there(path: Path) -> Path:
    """The path, or the first folder above it that exists."""
    return next(place for place in (path, *path.parents) if place.exists())


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path in a folder is, or lies behind, a symbolic link that leads out of it.

    A folder that came from elsewhere must not choose what is read or written on this machine.
    """
    root, target = os.path.realpath(folder), os.path.realpath(path)
    return os.path.commonpath([root, target]) != root


@contextlib.contextmanager
def written_whole(name: str, path: Path) -> Iterator[Path]:
    """A temporary file beside ``path``, the argument ``name``, whose place it takes in the end.

    Only if the block ends well; the folder is made where it is missing. A file that a library
    writes itself may end in an error of its own where the disk is full: give it the bytes.
    """
    temporary = path.absolute().with_name(f".golddiff-{uuid.uuid4().hex}{path.suffix}")
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(exist_ok=False)
        yield temporary
        os.replace(temporary, path)
    except OSError as error:
        raise _unwritable(name, path, error) from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _unwritable(name: str, path: Path, error: OSError) -> ArgumentError:
    return ArgumentError(f"{name}: {path} cannot be written ({error.strerror or error})")


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


def trim(folder: Path, most: int, which: str = "**/*") -> None:
    """Delete the oldest files in a folder until the others hold at most so many bytes."""
    files = []
    for path in folder.glob(which):
        with contextlib.suppress(OSError):  # another process or request deleted it
            if path.is_file():
                files.append((path.stat().st_mtime, path.stat().st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= most:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def allowed(packed: int) -> int:
    """Bytes that so many packed bytes may unpack to."""
    return max(FREE, MOST_TIMES * packed)


def check_unpacked(name: str, packed: int, unpacked: int) -> None:
    """Raise where a file or member says that it unpacks to more."""
    if unpacked > allowed(packed):
        raise SourceError(
            f"{name} unpacks from {packed:,} to {unpacked:,} bytes, more than {MOST_TIMES} times "
            "its size; unpack it yourself if it is to be trusted"
        )


class Unpacked:
    """A file as it was before gzip, bzip2 or xz, whichever it is in; a bomb ends in an OSError."""

    def __init__(self, path: Path) -> None:
        self._most = allowed(path.stat().st_size)
        self._file = path.open("rb")
        head = self._file.read(6)
        self._file.seek(0)
        readers = (reader for magic, reader in _PACKED.items() if head.startswith(magic))
        self._stream: Any = next(readers, lambda file: file)(self._file)

    def __enter__(self) -> Unpacked:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, place: int) -> int:
        """Go to a place, as far as it may unpack to."""
        if place > self._most:
            raise self._bomb()
        return int(self._stream.seek(place))

    def tell(self) -> int:
        """The place."""
        return int(self._stream.tell())

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, or all."""
        room = self._most - self.tell()
        data: bytes = self._stream.read(room + 1 if size < 0 else min(size, room + 1))
        if len(data) > room:
            raise self._bomb()
        return data

    def _bomb(self) -> OSError:
        return OSError(f"it unpacks to more than {self._most:,} bytes")


@contextlib.contextmanager
def readable(what: str) -> Iterator[None]:
    """What goes wrong in the block, as a SourceError that says what it was that could not be read.

    Libraries raise nearly anything on damaged data: names that are no text, numbers out of range.
    """
    try:
        yield
    except GoldDiffError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise SourceError(f"{what}: {reason}") from error


def inside(folder: Path, path: Path) -> Path:
    """The path, where following its links does not lead out of the folder."""
    if leads_out(folder, path):
        raise SourceError(f"{path} is a symbolic link that leads out of its folder; copy the file")
    return path
