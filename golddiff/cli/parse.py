"""Option values that are richer than a number: sizes, patch sizes and labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

PatchSizes = int | str | tuple[tuple[float, int], ...]


def parse_size(name: str, text: str) -> int | float:
    """A whole number is a count, anything else ('0.05', '1/20') a fraction."""
    try:
        if "/" in text:
            above, below = text.split("/")
            return float(above) / float(below)
        return int(text) if text.strip().lstrip("+-").isdigit() else float(text)
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(
            f"{name}: got {text!r}, expected a count (100) or a fraction (0.05 or 1/20)"
        ) from None


def parse_numbers(name: str, text: str) -> tuple[float, ...]:
    """Numbers with commas between."""
    try:
        return tuple(float(word) for word in text.split(","))
    except ValueError:
        raise ArgumentError(f"{name}: got {text!r}, expected numbers with commas between") from None


def parse_whole_numbers(name: str, text: str) -> tuple[int, ...]:
    """Whole numbers with commas between."""
    try:
        return tuple(int(word) for word in text.split(","))
    except ValueError:
        raise ArgumentError(
            f"{name}: got {text!r}, expected whole numbers with commas between (1,2,2)"
        ) from None


def parse_patch_size(name: str, text: str) -> PatchSizes:
    """An odd number, the name of a calibration, or the pairs of ``golddiff oracle patch-sizes``.

    Raises:
        ArgumentError: a JSON file that is not there or holds no pairs (sigma, size).
    """
    if not text.endswith(".json"):
        return int(text) if text.lstrip("+-").isdigit() else text
    try:
        pairs = json.loads(Path(text).read_text("utf-8"))["patch_sizes"]
        return tuple((float(sigma), size) for sigma, size in pairs)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArgumentError(
            f"{name}: {text} is not what golddiff oracle patch-sizes --json writes "
            f"({type(error).__name__})"
        ) from None


def parse_labels(text: str | None, store: ImageStore, n: int) -> list[int] | None:
    """The class of each of ``n`` images: one class for all, or several in turn.

    They are indices, or names that are not numbers, with commas between; None for none.
    """
    if text is None:
        return None
    classes = [_class_index(word.strip(), store) for word in text.split(",")]
    for label in classes[:n]:
        store.count_of(label)  # raises where the class has no images
    return [classes[i % len(classes)] for i in range(n)]


def _class_index(word: str, store: ImageStore) -> int:
    if word.lstrip("-").isdigit():
        return int(word)
    names = store.class_names or []
    if word not in names:
        known = f" or a name ({', '.join(names[:8])}, ...)" if names else ""
        raise ArgumentError(
            f"labels: got {word!r}, expected a class index{known}; several with commas between"
        )
    return names.index(word)
