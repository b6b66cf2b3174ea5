"""Argument checks, and the opening of ``--data``, shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.estimators.registry import method_named
from golddiff.system.errors import ArgumentError
from golddiff.system.units import shape_text

if TYPE_CHECKING:
    from golddiff.sources.source_options import SourceOptions
    from golddiff.store.images import ImageStore

STEPS = 10  # steps of the DDIM run whose noise levels are benchmarked


def at_least(job: object, **least: int) -> None:
    """Raise ArgumentError if an attribute of a job is below its minimum; None is accepted."""
    for name, smallest in least.items():
        value = getattr(job, name)
        if value is not None and value < smallest:
            raise ArgumentError(f"{name}: got {value}, expected {smallest} or more")


def split_names(names: Iterable[str]) -> tuple[str, ...]:
    """Names of methods, from texts that each hold one name or several separated by commas."""
    return tuple(method_named(name) for text in names for name in text.split(","))


def given_store(data: str, reading: SourceOptions, say: Callable[[str], None]) -> ImageStore:
    """Open the store at a path as it is, or the cached store of another source."""
    from golddiff.store.cache import cached_store
    from golddiff.store.images import ImageStore
    from golddiff.store.opening import is_store

    path = Path(data).expanduser()
    return ImageStore.open(path) if is_store(path) else cached_store(data, reading, say=say)


def check_side(store: ImageStore, side: int) -> None:
    """Raise ArgumentError unless a store holds images of at least side x side."""
    if len(store.shape) != 3 or min(store.shape[1:]) < side:
        raise ArgumentError(
            f"store: holds {shape_text(store.shape)}, expected images of {side} x {side} or more"
        )


def check_others(others: ImageStore, store: ImageStore, count: int) -> None:
    """Raise ArgumentError unless ``others`` has at least ``count`` images of the store's shape."""
    if others.shape != store.shape or others.n < count:
        raise ArgumentError(
            f"others: got {others.n:,} of {shape_text(others.shape)}, expected {count:,} or more "
            f"of {shape_text(store.shape)}, the shape of the store"
        )


def check_deepinv() -> None:
    """Raise ArgumentError if deepinv is not installed."""
    try:
        from golddiff import deepinv as _  # noqa: F401
    except ImportError as error:
        raise ArgumentError(str(error)) from error
