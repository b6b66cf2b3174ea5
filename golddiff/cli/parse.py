"""Parsers of option values: sizes, lists of numbers, patch sizes and labels."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

PatchSizes = int | str | tuple[tuple[float, int], ...]


def parse_size(name: str, text: str) -> int | float:
    """An int for a whole number (a count), a float for a fraction ('0.05', '1/20')."""
    try:
        if "/" in text:
            numerator, denominator = text.split("/")
            return float(numerator) / float(denominator)
        return int(text) if text.strip().lstrip("+-").isdigit() else float(text)
    except (ValueError, ZeroDivisionError):
        raise ArgumentError(
            f"{name}: got {text!r}, expected a count (100) or a fraction (0.05 or 1/20)"
        ) from None


def parse_numbers(name: str, text: str, kind: type = float) -> tuple[Any, ...]:
    """Comma-separated numbers, or whole numbers for ``kind`` int."""
    try:
        return tuple(map(kind, text.split(",")))
    except ValueError:
        what = "whole numbers (1,2,2)" if kind is int else "numbers"
        raise ArgumentError(f"{name}: got {text!r}, expected comma-separated {what}") from None


def parse_patch_size(name: str, text: str) -> PatchSizes:
    """A number, a calibration's name, or pairs (sigma, size) from ``golddiff oracle patch-sizes``.

    Raises:
        ArgumentError: a JSON file is missing or holds no pairs (sigma, size).
    """
    if not text.endswith(".json"):
        return int(text) if re.fullmatch("[+-]?[0-9]+", text) else text
    try:
        pairs = json.loads(Path(text).read_text("utf-8"))["patch_sizes"]
        return tuple((float(sigma), size) for sigma, size in pairs)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ArgumentError(
            f"{name}: got {text}, expected a file of golddiff oracle patch-sizes --json "
            f"({type(error).__name__})"
        ) from None


def parse_labels(text: str | None, store: ImageStore, n: int) -> list[int] | None:
    """The classes of ``n`` images from comma-separated class indices or names, used in turn.

    None if ``text`` is None. A number is a class name if there is one, else an index.
    """
    if text is None:
        return None
    classes = [_class_index(word.strip(), store) for word in text.split(",")]
    for label in classes[:n]:
        store.count_of(label)  # raises where the class has no images
    return [classes[i % len(classes)] for i in range(n)]


def _class_index(word: str, store: ImageStore) -> int:
    names = store.class_names or []
    if word in names:
        return names.index(word)
    if re.fullmatch("-?[0-9]+", word):
        return int(word)
    more = ", ..." if len(names) > 8 else ""
    known = f" or a name ({', '.join(names[:8])}{more})" if names else ""
    raise ArgumentError(
        f"labels: got {word!r}, expected a class index{known}, or a comma-separated list"
    )
