"""GoldDiff: any estimator, over a golden subset that changes with the noise (paper, Sec. 3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.adaptive.schedule import AdaptiveSchedule, FittedSchedule
from golddiff.denoisers.base import Denoiser, Estimator, Labels
from golddiff.errors import ArgumentError
from golddiff.schedules import PaperSchedule
from golddiff.store import ImageStore
from golddiff.support import AnySupport


class Schedule(Protocol):
    """Chooses a support for each query at each noise level; see :class:`PaperSchedule`."""

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): how many of n images are screened and kept at a noise level."""
        ...

    def supports(
        self, store: ImageStore, x: NDArray[np.float32], sigma: float, label: int | None, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D); a query's must not depend on the others."""
        ...


class GoldDiff(Denoiser):
    """The posterior mean of ``base`` over each query's golden subset instead of all images.

    Args:
        base: Optimal, PCA or Kamb.
        schedule: chooses the subset; default the paper's text.
        seed: of the images drawn at random, where the schedule draws any.

    Source: paper, Sec. 3.4 and Theorem 1.
    """

    def __init__(
        self, base: Estimator, schedule: Schedule | AdaptiveSchedule | None = None, seed: int = 0
    ) -> None:
        if not isinstance(base, Estimator):
            raise ArgumentError(
                f"base: got {type(base).__name__}, expected an estimator that weighs images "
                "(Optimal, PCA or Kamb)"
            )
        if isinstance(schedule, AdaptiveSchedule):
            # It depends on what is weighed, so it is first told which estimator that is.
            schedule = schedule.fitted(base)
        if schedule is not None and not callable(getattr(schedule, "supports", None)):
            raise ArgumentError(
                f"schedule: got {schedule!r}, expected PaperSchedule, AdaptiveSchedule or another "
                "object with supports(store, x, sigma, label, seed)"
            )
        super().__init__(base.store)
        self.base = base
        self.schedule: Schedule = PaperSchedule() if schedule is None else schedule
        self.seed = seed

    def denoise(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> NDArray[np.float32]:
        """Posterior means (b, D), each over its own support."""
        # Screening holds a distance and an index for every image and query.
        images = self.store.largest_part(label)
        step = max(1, int(self.base.memory_limit // (24 * images)))
        return np.concatenate(
            [self._denoise(x[i : i + step], sigma, label) for i in range(0, len(x), step)]
        )

    def _denoise(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> NDArray[np.float32]:
        supports = self.schedule.supports(self.store, x, sigma, label, self.seed)
        return self.base.denoise_each(x, sigma, supports)

    def describe_step(self, sigma: float, label: int | None = None) -> str:
        """How the images of a noise level are chosen, in words."""
        if isinstance(self.schedule, FittedSchedule):
            return str(self.schedule.plan(sigma, label))
        images = self.store.count_of(label)
        m, k = self.schedule.budgets(sigma, images)
        return f"screens {m:,}, weighs {k:,} of {images:,} images"

    def weighing(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> list[tuple[Estimator, AnySupport]]:
        """The base estimator, over each query's golden subset."""
        supports = self.schedule.supports(self.store, x, sigma, label, self.seed)
        return [(self.base, support) for support in supports]

    def supports(
        self, x: torch.Tensor, sigma: float, labels: Labels = None
    ) -> Sequence[AnySupport]:
        """The golden subset of each query (B, *shape) at one noise level, for inspection."""
        queries = self._checked_x(x)
        (level,) = set(self._checked_sigma(sigma, 1))
        classes = self._checked_labels(labels, len(queries))
        return [
            self.schedule.supports(self.store, q[None], level, label, self.seed)[0]
            for q, label in zip(queries, classes, strict=True)
        ]
