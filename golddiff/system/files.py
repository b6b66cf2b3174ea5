"""Atomic writes, file locks, and safe reading of untrusted files.

An untrusted file must neither fill memory nor make this process read other local files.
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
    BusyError,
    GoldDiffError,
    SourceError,
    StoreError,
    one_line,
)
from golddiff.system.units import byte_size

PICTURES = (".png", ".jpg", ".jpeg", ".webp")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # full disk, quota or file size limit
# Largest ratio of unpacked to packed size. Real training sets reach some tens (MNIST: 5).
MAX_RATIO = 200
# Bytes that any file may unpack to, however small it is.
FREE = 64_000_000

_PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


def is_folder(path: Path) -> bool:
    """Whether an output is a folder of pictures: it has no ending (run, v0.5), or exists as one."""
    ending = path.suffix.lower()
    return not ending or ending[1:].isdigit() or (path.is_dir() and ending not in PICTURES)


def check_pictures(name: str, path: Path) -> None:
    """Raise unless an output is a picture, an .npz file or a folder of pictures."""
    known = (*PICTURES, ".npz")
    if not is_folder(path) and path.suffix.lower() not in known:
        expected = f"a name ending in {', '.join(known)}, or a folder"
        raise ArgumentError(f"{name}: got {path}, expected {expected}")


def check_writable(name: str, path: Path, suffixes: Sequence[str] = ()) -> None:
    """Raise if a file cannot be written at ``path``, the value of the argument ``name``.

    The folder need not exist yet. If ``suffixes`` are given, the name must end in one of them.
    """
    if suffixes and path.suffix.lower() not in suffixes:
        raise ArgumentError(f"{name}: got {path}, expected a name ending in {', '.join(suffixes)}")
    try:
        if path.is_dir():
            raise ArgumentError(f"{name}: {path} is a folder, expected a file name")
        # A trial write is the only test that covers read-only disks, access lists and root.
        with tempfile.TemporaryFile(dir=_nearest_existing(path.absolute().parent)):
            pass
    except OSError as error:
        raise _unwritable(name, path, error) from error


def check_disk(name: str, path: Path, needed: float) -> None:
    """Raise if the disk of ``path`` has fewer than ``needed`` bytes free."""
    free = shutil.disk_usage(_nearest_existing(path.absolute())).free
    if needed > free:
        raise StoreError(
            f"{name}: {path} needs about {byte_size(int(needed))}, and the disk has "
            f"{byte_size(free)} free"
        )


def _nearest_existing(path: Path) -> Path:
    """The path itself if it exists, otherwise its nearest parent that does."""
    return next(candidate for candidate in (path, *path.parents) if candidate.exists())


def leads_out(folder: Path, path: Path) -> bool:
    """Whether a path in a folder resolves, through symbolic links, to a place outside the folder.

    Links in an untrusted folder must not decide which files are read or written.
    """
    root, target = os.path.realpath(folder), os.path.realpath(path)
    return os.path.commonpath([root, target]) != root


@contextlib.contextmanager
def atomic_write(name: str, path: Path) -> Iterator[Path]:
    """Yield a temporary file beside ``path``; it replaces ``path`` if the block succeeds.

    Missing folders are created. ``name`` is the argument that error messages name. Some libraries
    raise their own errors when the disk is full: let them write to memory, then write the bytes.
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
def locked(path: Path, message: str, wait: float = 0) -> Iterator[None]:
    """Hold a lock file, created on entry and deleted on exit; BusyError(message) if it is taken.

    ``wait`` is the number of seconds to wait for it. The system releases the lock when the process
    ends, even by a crash; a lock file left behind locks nothing. A symbolic link at ``path`` is not
    followed.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise BusyError(message) from None
    try:
        yield
    finally:
        # Delete before releasing, so that a waiting process sees that the file is gone.
        path.unlink(missing_ok=True)
        lock.release()


def trim(folder: Path, most: int, which: str = "**/*") -> None:
    """Delete a folder's oldest files until the rest hold at most ``most`` bytes."""
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
    """The number of bytes that ``packed`` bytes may unpack to."""
    return max(FREE, MAX_RATIO * packed)


def check_unpacked(
    name: str, packed: int, unpacked: int, kind: type[GoldDiffError] = SourceError
) -> None:
    """Raise if the declared unpacked size is more than :func:`allowed`."""
    if unpacked > allowed(packed):
        raise kind(
            f"{name} unpacks from {packed:,} to {unpacked:,} bytes, more than {MAX_RATIO} times "
            "its size; unpack it yourself if you trust it"
        )


class DecompressedFile:
    """A file opened through gzip, bzip2 or xz if it is compressed; OSError past the size limit."""

    def __init__(self, path: Path) -> None:
        self._most = allowed(path.stat().st_size)
        self._file = path.open("rb")
        head = self._file.peek(6)
        readers = (reader for magic, reader in _PACKED.items() if head.startswith(magic))
        self._stream: Any = next(readers, lambda file: file)(self._file)
        self.tell: Callable[[], int] = self._stream.tell

    def __enter__(self) -> DecompressedFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def seek(self, offset: int) -> int:
        """Move to an offset of the unpacked bytes."""
        if offset > self._most:
            raise self._too_large()
        return int(self._stream.seek(offset))

    def read(self, size: int = -1) -> bytes:
        """Read at most ``size`` bytes, or all."""
        left = self._most - self.tell()
        data: bytes = self._stream.read(left + 1 if size < 0 else min(size, left + 1))
        if len(data) > left:
            raise self._too_large()
        return data

    def _too_large(self) -> OSError:
        return OSError(f"it unpacks to more than {self._most:,} bytes")


@contextlib.contextmanager
def readable(what: str, kind: type[GoldDiffError] = SourceError) -> Iterator[None]:
    """Turn any exception in the block into one of ``kind`` whose message starts with ``what``.

    On damaged data, libraries raise nearly any exception type. golddiff's own errors stay.
    """
    try:
        yield
    except GoldDiffError:
        raise
    except Exception as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise kind(f"{what}: {reason}") from error


def check_inside(folder: Path, path: Path, kind: type[GoldDiffError] = SourceError) -> Path:
    """Return the path; raise ``kind`` if its links lead out of the folder."""
    if leads_out(folder, path):
        raise kind(f"{path} is a symbolic link that leads out of its folder; copy the file")
    return path
