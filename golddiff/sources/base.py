"""What a source of training images is: a shape, a data type, and batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray


class Batch(NamedTuple):
    """A run of consecutive examples.

    Attributes:
        pixels: (b, *shape), C order; uint8 in 0..255, or float32 as given (images in [-1, 1]).
        labels: (b,) int64 class indices, or None where the source has no labels.
    """

    pixels: NDArray[np.generic]
    labels: NDArray[np.int64] | None


@dataclass(frozen=True)
class SourceInfo:
    """What is known of a source before it is read.

    Attributes:
        shape: shape of one example: (C, H, W), or (D,) for plain points.
        dtype: ``uint8`` or ``float32``.
        labelled: whether batches carry labels.
        class_names: a name for each class index, where the source has them.
        count: number of examples, or None where only reading tells.
        description: one line for the manifest and the progress bar ("folder photos").
    """

    shape: tuple[int, ...]
    dtype: np.dtype[np.generic]
    labelled: bool
    class_names: tuple[str, ...] | None = None
    count: int | None = None
    description: str = ""


@dataclass
class Skipped:
    """Examples that could not be read and were left out (``skip_bad=True``)."""

    names: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)

    def add(self, name: str, reason: str) -> None:
        """Record one example by name, with why it was left out."""
        self.names.append(name)
        self.reasons.append(reason)

    def lines(self, most: int = 5) -> list[str]:
        """What was left out, for people: how many, the first few by name and reason."""
        if not self.names:
            return []
        pairs = list(zip(self.names, self.reasons, strict=True))
        return [
            f"left out {len(pairs):,} that could not be read:",
            *(f"  {name}: {reason}" for name, reason in pairs[:most]),
            *([f"  and {len(pairs) - most:,} more"] if len(pairs) > most else []),
        ]

    def __len__(self) -> int:
        return len(self.names)


class Source(Protocol):
    """A training set that can be read once from start to end, in a fixed order."""

    info: SourceInfo
    skipped: Skipped

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield the examples in order, ``size`` at a time (the last batch may be shorter)."""
        ...
