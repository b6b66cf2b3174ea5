"""Images as they are stored: what compiled loops read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.system.numbers import F32, I64
from golddiff.system.residency import parts, resident_rows


@dataclass(frozen=True)
class Stored:
    """Numbers that stand for the values flat * scale + offset.

    Attributes:
        flat: (N, D) uint8 or float32, mapped or in memory.
        scale, offset: 1/127.5 and -1 of pixels.
    """

    flat: NDArray[Any]
    scale: float = 1.0
    offset: float = 0.0

    @property
    def scaling(self) -> tuple[np.float32, np.float32]:
        """Scale and offset as the loops take them."""
        return np.float32(self.scale), np.float32(self.offset)

    @property
    def arrays(self) -> tuple[NDArray[np.uint8], F32]:
        """The numbers in one of two arrays, read-only, the other (0, D).

        Compiled loops that take both are compiled once, for pixels and for float32 numbers.
        """
        none, flat = (0, self.flat.shape[1]), self.flat.view()
        flat.flags.writeable = False
        octets = np.empty(none, np.uint8) if flat.dtype != np.uint8 else flat
        numbers = np.empty(none, np.float32) if flat.dtype == np.uint8 else flat
        octets.flags.writeable = numbers.flags.writeable = False
        return octets, numbers

    @contextmanager
    def resident(self, rows: I64) -> Iterator[tuple[Stored, I64]]:
        """The images with some rows in memory, and where these lie there."""
        with resident_rows(self.flat, rows) as (flat, places):
            yield replace(self, flat=flat), places

    def values(self, rows: I64) -> F32:
        """Of some rows, (k, D) float32."""
        values = np.empty((len(rows), self.flat.shape[1]), np.float32)
        for start, part in parts(rows):
            with resident_rows(self.flat, part) as (flat, places):
                values[start : start + len(part)] = flat[places]
        return self.scaled(values)

    def scaled(self, numbers: F32) -> F32:
        """Numbers turned to values, in place."""
        if (self.scale, self.offset) != (1, 0):
            scale, offset = self.scaling
            numbers *= scale
            numbers += offset
        return numbers
