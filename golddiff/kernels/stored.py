"""Stored images, the input of compiled loops."""

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
    """Stored numbers that represent the values flat * scale + offset.

    Attributes:
        flat: (N, D) uint8 or float32, memory-mapped or in memory; read-only.
        scale, offset: 1/127.5 and -1 for pixels.
    """

    flat: NDArray[Any]
    scale: float = 1.0
    offset: float = 0.0

    def __post_init__(self) -> None:
        if self.flat.flags.writeable:  # mapped files are not, and loops compile once for both
            object.__setattr__(self, "flat", self.flat.view())
            self.flat.flags.writeable = False

    @property
    def scaling(self) -> tuple[np.float32, np.float32]:
        """Scale and offset as float32, for compiled loops."""
        return np.float32(self.scale), np.float32(self.offset)

    @contextmanager
    def resident(self, rows: I64) -> Iterator[tuple[Stored, I64]]:
        """Yield images whose given rows are in memory, and the rows' indices there."""
        with resident_rows(self.flat, rows) as (flat, local_rows):
            yield replace(self, flat=flat), local_rows

    def values(self, rows: I64, columns: I64 | None = None) -> F32:
        """The values of the given rows, (k, D) float32, or of some of their columns, (k, C)."""
        width = self.flat.shape[1] if columns is None else len(columns)
        values = np.empty((len(rows), width), np.float32)
        for start, part in parts(rows):
            with self.resident(part) as (loaded, local_rows):
                chosen: Any = local_rows if columns is None else np.ix_(local_rows, columns)
                values[start : start + len(part)] = loaded.flat[chosen]
        if (self.scale, self.offset) != (1, 0):
            scale, offset = self.scaling
            values *= scale
            values += offset
        return values
