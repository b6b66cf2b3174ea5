"""What came from elsewhere must not fill memory, nor choose what is read on this machine."""

from __future__ import annotations

import bz2
import gzip
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from golddiff.system.errors import SourceError
from golddiff.system.files import leads_out

# Training sets in use unpack to at most some tens of times their size (MNIST: 5).
MOST_TIMES = 200
# What may always be unpacked, however small the file.
FREE = 64_000_000

_PACKED: dict[bytes, Callable[[IO[bytes]], Any]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file),
    b"BZh": bz2.BZ2File,
    b"\xfd7zXZ\x00": lzma.LZMAFile,
}


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

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to a place."""
        return int(self._stream.seek(place, whence))

    def tell(self) -> int:
        """The place."""
        return int(self._stream.tell())

    def read(self, size: int = -1) -> bytes:
        """At most ``size`` bytes, or all."""
        room = self._most - self.tell()
        data: bytes = self._stream.read(room + 1 if size < 0 else min(size, room + 1))
        if len(data) > room:
            raise OSError(f"it unpacks to more than {self._most:,} bytes")
        return data


def inside(folder: Path, path: Path) -> Path:
    """The path, where following its links does not lead out of the folder."""
    if leads_out(folder, path):
        raise SourceError(f"{path} is a symbolic link that leads out of its folder; copy the file")
    return path
