"""How a source is to be read: the options of ``open_source``, checked once."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import ArgumentError


@dataclass(frozen=True)
class Options:
    """The options of ``open_source``; see there for what each means.

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

    def __post_init__(self) -> None:
        if self.size is not None:
            require_integer("size", self.size, least=1)
        if self.channels is not None and self.channels not in (1, 3):
            raise ArgumentError(f"channels is {self.channels!r}; give 1 (grey) or 3 (RGB)")
        if self.limit is not None:
            require_integer("limit", self.limit, least=1)
        require_integer("seed", self.seed, least=0)
        if not isinstance(self.split, str) or not self.split:
            raise ArgumentError(f"split is {self.split!r}; give a name such as 'train'")

    def limited(self, count: int) -> int:
        """How many of ``count`` examples are to be read."""
        return count if self.limit is None else min(count, self.limit)

    def refuse_columns(self, kind: str) -> None:
        """Raise ArgumentError where a column is named for a source that has none."""
        for name, value in (("column", self.column), ("label_column", self.label_column)):
            if value is not None:
                raise ArgumentError(f"{name}={value!r} does not apply to {kind}")

    def own_labels(self, count: int) -> NDArray[np.int64] | None:
        """The labels given by the caller, for ``count`` examples: (count,) int64, or None.

        Raises:
            ArgumentError: they are too many or too few, not integers, or negative.
        """
        return None if self.labels is None else check_labels(self.labels, count)


def require_integer(name: str, value: object, *, least: int) -> int:
    """Return ``value`` as an int that is at least ``least``, or raise ArgumentError."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or number < least:
        raise ArgumentError(f"{name} is {value!r}; give a whole number of at least {least}")
    return number


def check_labels(labels: Any, count: int) -> NDArray[np.int64]:
    """Labels as (count,) int64 class indices.

    Args:
        labels: array-like or tensor of ``count`` whole numbers, none negative.
        count: number of examples they belong to.

    Raises:
        ArgumentError: another length or shape, another data type, or a negative label.
    """
    if hasattr(labels, "detach"):
        labels = labels.detach().cpu()
    try:
        array = np.asarray(labels)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"labels cannot be read as an array: {error}") from error
    if array.ndim != 1:
        raise ArgumentError(f"labels have shape {array.shape}; give one dimension, ({count},)")
    if len(array) != count:
        raise ArgumentError(f"{len(array)} labels were given for {count} examples")
    if array.dtype.kind not in "iu":
        raise ArgumentError(f"labels have data type {array.dtype}; give whole numbers")
    indices = array.astype(np.int64)
    if count and indices.min() < 0:
        where = int(np.argmax(indices < 0))
        raise ArgumentError(f"label {where} is {array[where]}; class indices start at 0")
    return indices
