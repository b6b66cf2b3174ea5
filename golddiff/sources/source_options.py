"""The options of :func:`golddiff.sources.open_source`, checked once."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from golddiff.system.errors import ArgumentError, SourceError
from golddiff.system.numbers import check_count, check_seed

DEFAULT_SPLIT = "train"
ValueRange = tuple[float, float] | str | None
COLUMNS, SPLIT = ("column", "label_column"), "split"


def source_options(**given: Any) -> SourceOptions:
    """The options of these names; raises ArgumentError for a name that is not one."""
    known = [field.name for field in fields(SourceOptions)]
    for name in given:
        if name not in known:
            raise ArgumentError(f"{name}: no source has it; expected one of {', '.join(known)}")
    return SourceOptions(**given)


@dataclass(frozen=True)
class SourceOptions:
    """How a source is read.

    Attributes:
        size: scale the shorter side of each image to this, then crop the middle square.
        channels: 1 (grey) or 3 (RGB). None: grey if the first 64 images are grey, otherwise RGB;
            arrays keep their channels.
        split: the split to read, if the source has splits.
        column: the column, or the array of a .npz, that holds the images.
        label_column: the column, or the array of a .npz, that holds the labels.
        skip_bad: skip images that cannot be read and list them in ``skipped``, instead of raising.
        limit: read only the first ``limit`` examples (with ``skip_bad``: the readable ones among
            them). For moons and patches, the number of examples to generate.
        seed: random seed of the points of moons and the crops of patches.
        labels: N integers >= 0, one for each example of the whole source (before ``limit``); they
            replace the source's own labels.
        value_range: least and largest value of float images, mapped to -1 and 1: they are pixels,
            and DDIM clips samples. "any": floats keep their values, and may be latents. None: the
            same, but images without a value below 0 are refused.

    Raises:
        ArgumentError: an option has a value that is not allowed.
    """

    size: int | None = None
    channels: int | None = None
    split: str = DEFAULT_SPLIT
    column: str | None = None
    label_column: str | None = None
    skip_bad: bool = False
    limit: int | None = None
    seed: int = 0
    labels: Any = None
    value_range: ValueRange = None

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
            self._set("value_range", _checked_range(self.value_range))

    def _set(self, name: str, value: Any) -> None:
        # Numbers are stored as Python's own, since NumPy's cannot be written to JSON.
        object.__setattr__(self, name, value)

    def beyond(self, shape: tuple[int, ...]) -> SourceOptions:
        """The options, without a size and channels that images of a shape have already."""
        size = None if {*shape[1:]} == {self.size} else self.size
        return replace(
            self, size=size, channels=None if shape[0] == self.channels else self.channels
        )

    def saved(self) -> dict[str, Any]:
        """The options as files record them: without labels, and ``value_range`` only if given."""
        options = {name: value for name, value in vars(self).items() if name != "labels"}
        if self.value_range is None:
            del options["value_range"]  # older stores and shards have no such key and must match
        return options

    def limited(self, count: int) -> int:
        """The number of examples to read out of ``count``."""
        return count if self.limit is None else min(count, self.limit)

    def require_split(self, splits: Collection[str], where: str) -> None:
        """Raise SourceError if the splits of a source do not include the wanted one."""
        if self.split not in splits:
            names = ", ".join(map(str, splits))
            raise SourceError(f"{where} has no split {self.split!r}; it has: {names}")

    def refuse(self, kind: str, names: Sequence[str] = (*COLUMNS, SPLIT)) -> None:
        """Raise ArgumentError if one of these options is given, as this kind of source has none."""
        for name in names:
            if (value := getattr(self, name)) != getattr(SourceOptions, name):
                raise ArgumentError(f"{name}={value!r} does not apply to {kind}")


def _checked_range(value_range: Any) -> ValueRange:
    if isinstance(value_range, str) and value_range == "any":
        return value_range
    try:
        least, most = map(float, value_range)
    except (TypeError, ValueError, OverflowError):
        least = most = 0.0
    if not -math.inf < least < most < math.inf:
        raise ArgumentError(
            f"value_range: got {value_range!r}, expected the least and the largest value, such as "
            'value_range=(0, 255), or "any"'
        )
    return least, most
