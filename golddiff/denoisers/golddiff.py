"""GoldDiff: any estimator, over a golden subset that changes with the noise (paper, Sec. 3)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoisers.base import Denoiser, Estimator, Labels
from golddiff.errors import ArgumentError
from golddiff.schedules import PaperSchedule
from golddiff.support import Support


class GoldDiff(Denoiser):
    """The posterior mean of ``base`` over each query's golden subset instead of all images.

    Args:
        base: Optimal, PCA or Kamb.
        schedule: chooses the subset; default the paper's text.
        seed: of the images drawn at random, where the schedule draws any.

    Source: paper, Sec. 3.4 and Theorem 1.
    """

    def __init__(
        self, base: Estimator, schedule: PaperSchedule | None = None, seed: int = 0
    ) -> None:
        if not isinstance(base, Estimator):
            raise ArgumentError(
                f"base: got {type(base).__name__}, expected an estimator that weighs images "
                "(Optimal, PCA or Kamb)"
            )
        super().__init__(base.store)
        self.base = base
        self.schedule = schedule if schedule is not None else PaperSchedule()
        self.seed = seed

    def denoise(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> NDArray[np.float32]:
        """Posterior means (b, D), each over its own support."""
        supports = self.schedule.supports(self.store, x, sigma, label, self.seed)
        if all(support is supports[0] for support in supports):
            return self.base.denoise_over(x, sigma, supports[0])
        return np.concatenate(
            [
                self.base.denoise_over(x[i : i + 1], sigma, support)
                for i, support in enumerate(supports)
            ]
        )

    def weighing(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> list[tuple[Estimator, Support]]:
        """The base estimator, over each query's golden subset."""
        supports = self.schedule.supports(self.store, x, sigma, label, self.seed)
        return [(self.base, support) for support in supports]

    def supports(self, x: torch.Tensor, sigma: float, labels: Labels = None) -> Sequence[Support]:
        """The golden subset of each query (B, *shape) at one noise level, for inspection."""
        queries = self._checked_x(x)
        (level,) = set(self._checked_sigma(sigma, 1))
        classes = self._checked_labels(labels, len(queries))
        return [
            self.schedule.supports(self.store, q[None], level, label, self.seed)[0]
            for q, label in zip(queries, classes, strict=True)
        ]
