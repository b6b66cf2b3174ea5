"""What each part of ``network_like`` adds to its likeness to networks: not in the paper."""

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

# The parts of network_like by place, below the noise from which the mixture stands alone.
SQUARES, NARROW, MIXTURE, PATCHES = range(4)


class Changed(NetworkLike):
    """``network_like`` of some of its parts, their median or their mean.

    Args:
        store: the training set.
        seed: of the golden subsets.
        kept: places of the parts.
        joined: takes the parts' means (P, b, D) to one (b, D), along the first axis.
    """

    def __init__(
        self,
        store: ImageStore,
        seed: int,
        kept: tuple[int, ...] = (SQUARES, NARROW, MIXTURE, PATCHES),
        joined: Callable[..., Any] = np.median,
    ) -> None:
        super().__init__(store, seed)
        self._kept, self.joined = kept, joined

    def parts(self, sigma: float) -> list[Denoiser]:
        """Those kept; the mixture where there is one part alone."""
        parts = super().parts(sigma)
        return parts if len(parts) == 1 else [parts[place] for place in self._kept]


CHANGES = {
    "without squares": partial(Changed, kept=(NARROW, MIXTURE, PATCHES)),
    "without narrow masks": partial(Changed, kept=(SQUARES, MIXTURE, PATCHES)),
    "without golden parts": partial(Changed, kept=(MIXTURE, PATCHES)),
    "without mixture": partial(Changed, kept=(SQUARES, NARROW, PATCHES)),
    "without patches": partial(Changed, kept=(SQUARES, NARROW, MIXTURE)),
    "mean instead of median": partial(Changed, joined=np.mean),
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
