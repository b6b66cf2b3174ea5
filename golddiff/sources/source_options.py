"""How a training set is read: the options of :func:`golddiff.sources.open_source`, checked once."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from golddiff.system.errors import ArgumentError, SourceError
from golddiff.system.numbers import check_count, check_seed


@dataclass(frozen=True)
class SourceOptions:
    """How a source is read.

    Attributes:
        size: scale the shorter side of each image to this and crop the middle square.
        channels: 1 (grey) or 3 (RGB). None: grey where the first 64 images are, otherwise RGB;
            arrays stay as they are.
        split: the part to read, where a source has parts.
        column: the column, or array of a .npz, that holds the images.
        label_column: the column, or array of a .npz, that holds the labels.
        skip_bad: leave out images that cannot be read, and list them in ``skipped``, instead of
            raising. ``info.count`` is then None.
        limit: read at most this many examples, the first ones (with ``skip_bad``: the readable
            ones among them). The number of points of moons and of images of patches.
        seed: chooses the points of moons and the crops of patches.
        labels: N whole numbers >= 0, one for each example of the whole source (before ``limit``),
            in place of the source's own labels.
        value_range: of float images: their least and largest value, taken to -1 and 1. None or
            (-1, 1): floats keep their values.

    Raises:
        ArgumentError: an option has a value that is not allowed.
    """

    size: int | None = None
    channels: int | None = None
    split: str = "train"
    column: str | None = None
    label_column: str | None = None
    skip_bad: bool = False
    limit: int | None = None
    seed: int = 0
    labels: Any = None
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if self.channels is not None and self.channels not in (1, 3):
            raise ArgumentError(f"channels: got {self.channels!r}, expected 1 (grey) or 3 (RGB)")
        for name in ("size", "channels", "limit"):
            if getattr(self, name) is not None:
                self._set(name, check_count(name, getattr(self, name)))
        self._set("seed", check_seed(self.seed))
        if not isinstance(self.split, str) or not self.split:
            raise ArgumentError(f"split: got {self.split!r}, expected a name such as 'train'")
        if self.value_range is not None:
            self._set("value_range", _range_of(self.value_range))

    def _set(self, name: str, value: Any) -> None:
        # Numbers become Python's own: files that record options take none of NumPy's.
        object.__setattr__(self, name, value)

    def saved(self) -> dict[str, Any]:
        """The options as files record them: all but the labels, and what is new if not given."""
        made = {name: value for name, value in vars(self).items() if name != "labels"}
        if self.value_range is None:
            del made["value_range"]  # stores and shards that were made before stay theirs
        return made

    def limited(self, count: int) -> int:
        """How many of ``count`` examples are to be read."""
        return count if self.limit is None else min(count, self.limit)

    def require_split(self, found: Collection[str], where: str) -> None:
        """Raise SourceError where a source does not have the split."""
        if self.split not in found:
            there = ", ".join(map(str, found))
            raise SourceError(f"{where} has no split {self.split!r}; it has: {there}")

    def refuse_columns(self, kind: str) -> None:
        """Raise ArgumentError where a column is named for a source that has none."""
        for name, value in (("column", self.column), ("label_column", self.label_column)):
            if value is not None:
                raise ArgumentError(f"{name}={value!r} does not apply to {kind}")


def _range_of(given: Any) -> tuple[float, float]:
    try:
        least, most = map(float, given)
    except (TypeError, ValueError):
        least = most = 0.0
    if not -math.inf < least < most < math.inf:
        raise ArgumentError(
            f"value_range: got {given!r}, expected the least and the largest value, as (0, 255)"
        )
    return least, most
