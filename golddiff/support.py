"""A support: which training images are weighed at one step, with what importance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Support:
    """The training images that one query (or several alike) is compared with.

    Attributes:
        rows: (k,) int64 indices into the store, ascending (store order).
        log_weights: (k,) float64 log importance weights added to the logits, or None for all 0.
            An image drawn at random with probability p stands for 1/p images: log weight -log p.
    """

    rows: NDArray[np.int64]
    log_weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def log_importance(self) -> NDArray[np.float64]:
        """The log weights (k,), zeros where there are none."""
        return np.zeros(len(self.rows)) if self.log_weights is None else self.log_weights

    def split(self, size: int) -> list[Support]:
        """Consecutive parts of at most ``size`` images, in order."""
        return [
            Support(
                self.rows[i : i + size],
                None if self.log_weights is None else self.log_weights[i : i + size],
            )
            for i in range(0, len(self.rows), size)
        ]
