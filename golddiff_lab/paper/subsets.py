"""A support that is the same random images at every noise level."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.store.images import ImageStore
from golddiff.support import Support
from golddiff.system.errors import ArgumentError


class RandomSubset:
    """``size`` images drawn once: what the paper's Figure 3 compares the full scan with.

    A schedule for :class:`golddiff.estimators.golden.GoldDiff`. Smaller subsets of one seed lie
    within larger ones.

    Args:
        size: images, 1 or more; of a class with fewer, all of them.
    """

    def __init__(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ArgumentError(f"size: got {size!r}, expected an integer of 1 or more")
        self.size = size

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """The subset's size, screened and kept, whatever the noise."""
        size = min(self.size, n)
        return size, size

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> list[Support]:
        """One support for all queries."""
        rows = store.rows_of(label)
        drawn = np.random.default_rng(seed).permutation(rows)[: self.size]
        return [Support(np.sort(drawn))] * len(x)
