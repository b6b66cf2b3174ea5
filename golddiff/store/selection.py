"""Rows of a training set: those that indices or a class stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import I64

Indices = int | slice | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor


def checked_rows(indices: Indices | None, n: int) -> I64:
    """The rows that indices stand for, of n; None: all."""
    if indices is None:
        return np.arange(n)
    if isinstance(indices, slice):
        return np.arange(*indices.indices(n))
    rows = np.atleast_1d(np.asarray(indices))
    if rows.size == 0:
        return np.empty(0, np.int64)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ArgumentError(
            f"indices: got {rows.dtype} of shape {rows.shape}, expected integers of shape (k,)"
        )
    if rows.min() < 0 or rows.max() >= n:
        worst = rows.min() if rows.min() < 0 else rows.max()
        raise ArgumentError(f"indices: got {worst}, expected 0 to {n - 1}")
    return rows.astype(np.int64)


def counts_of(labels: I64 | None) -> dict[int, int]:
    """Images of each class that has any, ascending; empty without labels."""
    if labels is None:
        return {}
    classes, counts = np.unique(labels, return_counts=True)
    return dict(zip(classes.tolist(), counts.tolist(), strict=True))


def check_class(label: int | None, labelled: bool, counts: dict[int, int]) -> None:
    """Raise where a class has no images."""
    if label is None or label in counts:
        return
    if not labelled:
        raise ArgumentError(f"labels: got {label}, but the store has no labels")
    shown = ", ".join(map(str, list(counts)[:12])) + (", ..." if len(counts) > 12 else "")
    raise ArgumentError(
        f"labels: got {label}, a class with no images; the store has classes {shown}"
    )
