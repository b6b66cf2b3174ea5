"""Refusing files that unpack to far more than they hold: decompression bombs."""

from __future__ import annotations

import io
from typing import IO, Any

from golddiff.errors import SourceError
from golddiff.sources.names import printable

# Training sets in use unpack to at most some tens of times their size (MNIST: 5).
MOST_TIMES = 200
# What may always be unpacked, however small the file.
FREE = 64_000_000


def allowed(packed: int) -> int:
    """Bytes that so many packed bytes may unpack to."""
    return max(FREE, MOST_TIMES * packed)


def check_unpacked(name: str, packed: int, unpacked: int) -> None:
    """Raise where a file or member says that it unpacks to more.

    Raises:
        SourceError: it is a decompression bomb, or as good as one.
    """
    if unpacked > allowed(packed):
        raise SourceError(
            f"{printable(name)} unpacks from {packed:,} to {unpacked:,} bytes, more than "
            f"{MOST_TIMES} times its size; unpack it yourself if it is to be trusted"
        )


class Bounded(io.RawIOBase):
    """A stream that ends in an error after so many bytes, and gives none but small pieces.

    ``tarfile`` asks for a whole header, however large the archive says that it is.
    """

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self._stream, self._most = stream, most

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """As far as what it reads from is."""
        return self._stream.seekable()

    def seek(self, place: int, whence: int = 0) -> int:
        """Go to a place."""
        return self._stream.seek(place, whence)

    def tell(self) -> int:
        """The place."""
        return self._stream.tell()

    def read(self, size: int | None = -1) -> bytes:
        """At most ``size`` bytes.

        Raises:
            OSError: that would be past the end allowed.
        """
        room = self._most - self._stream.tell()
        if size is None or size < 0 or size > room:
            data = self._stream.read(max(0, room) + 1)
            if len(data) > room:
                raise OSError(f"it unpacks to more than {self._most:,} bytes")
            return data
        return self._stream.read(size)

    def readinto(self, buffer: Any) -> int:
        """As ``read``."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
