"""Checks of arguments that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from golddiff.estimators.registry import method_named
from golddiff.system.errors import ArgumentError
from golddiff.system.units import shape_text

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

STEPS = 10  # of the DDIM run whose noise levels are raced


def at_least(job: object, **least: int) -> None:
    """Raise ArgumentError where a number of a job, if it has one, is less than it may be."""
    for name, smallest in least.items():
        value = getattr(job, name)
        if value is not None and value < smallest:
            raise ArgumentError(f"{name}: got {value}, expected {smallest} or more")


def split_names(names: Iterable[str]) -> tuple[str, ...]:
    """Methods' names, given one by one, or several with commas between."""
    return tuple(method_named(name) for text in names for name in text.split(","))


def check_side(store: ImageStore, side: int) -> None:
    """Raise ArgumentError where a store holds no images, or smaller ones than side x side."""
    if len(store.shape) != 3 or min(store.shape[1:]) < side:
        raise ArgumentError(
            f"store: holds {shape_text(store.shape)}, expected images of {side} x {side} or more"
        )


def check_others(others: ImageStore, store: ImageStore, count: int) -> None:
    """Raise ArgumentError where a second store has other shapes, or less than so many images."""
    if others.shape != store.shape or others.n < count:
        raise ArgumentError(
            f"others: got {others.n:,} of {shape_text(others.shape)}, expected {count:,} or more "
            f"of {shape_text(store.shape)}, as those of the store"
        )


def check_deepinv() -> None:
    """Raise ArgumentError where deepinv is not installed."""
    try:
        from golddiff import deepinv as _  # noqa: F401
    except ImportError as error:
        raise ArgumentError(str(error)) from error
