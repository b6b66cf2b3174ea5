"""Ablation of the parts of ``network_like`` (not in the paper)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from golddiff.denoiser import Denoiser
from golddiff.estimators.network_like import NetworkLike
from golddiff.store.images import ImageStore
from golddiff_lab.paper.likeness import Row
from golddiff_lab.paper.likeness_tables import (
    GOLDDIFF,
    MAIN_COLUMNS,
    MNIST_COLUMNS,
    OPTIMAL,
    RECOMMENDED,
    WIENER,
)
from golddiff_lab.paper.tables import LikenessTable

# Indices of the parts of network_like; above some noise level it uses the mixture only.
SQUARES, NARROW, MIXTURE, PATCHES = range(4)


class Changed(NetworkLike):
    """``network_like`` with a subset of its parts, combined by median or mean.

    Args:
        store: the training set.
        seed: seed of the golden subsets.
        kept: indices of the parts.
        combine: combines the parts' means (P, b, D) along the first axis into (b, D).
    """

    def __init__(
        self,
        store: ImageStore,
        seed: int,
        kept: tuple[int, ...] = (SQUARES, NARROW, MIXTURE, PATCHES),
        combine: Callable[..., Any] = np.median,
    ) -> None:
        super().__init__(store, seed)
        self._kept, self.combine = kept, combine

    def parts(self, sigma: float) -> list[Denoiser]:
        """The kept parts; just the mixture at noise levels where it is the only part."""
        parts = super().parts(sigma)
        return parts if len(parts) == 1 else [parts[place] for place in self._kept]


CHANGES = {
    "without squares": partial(Changed, kept=(NARROW, MIXTURE, PATCHES)),
    "without narrow masks": partial(Changed, kept=(SQUARES, MIXTURE, PATCHES)),
    "without golden parts": partial(Changed, kept=(MIXTURE, PATCHES)),
    "without mixture": partial(Changed, kept=(SQUARES, NARROW, PATCHES)),
    "without patches": partial(Changed, kept=(SQUARES, NARROW, MIXTURE)),
    "mean instead of median": partial(Changed, combine=np.mean),
    "mixture alone": partial(Changed, kept=(MIXTURE,)),
}
ROWS = (
    GOLDDIFF, RECOMMENDED,
    *(Row(title, f"network-like, {title}", make=change) for title, change in CHANGES.items()),
    OPTIMAL, WIENER,
)  # fmt: skip
ABLATION = LikenessTable(
    None,
    tuple(replace(column, stand_in=True) for column in (*MNIST_COLUMNS, *MAIN_COLUMNS)),
    ROWS,
    ("MSE", "r2", "Time"),
    tuple((row.title, GOLDDIFF.title) for row in ROWS[1:]),
)
