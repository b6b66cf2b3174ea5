"""GoldDiff: any estimator, over a golden subset that changes with the noise (paper, Sec. 3)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Protocol, Self, TypeGuard

import numpy as np
import torch

from golddiff.denoiser import Denoiser, Estimator
from golddiff.noise import Labels, Sigma
from golddiff.store.images import ImageStore
from golddiff.support import AnySupport, LogWeights, Prior
from golddiff.supports.adaptive import AdaptiveSchedule, FittedSchedule
from golddiff.supports.certificate import certify
from golddiff.supports.index.image_index import Index, open_or_build
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, check_seed


class Schedule(Protocol):
    """Chooses a support for each query at each noise level; see :class:`PaperSchedule`."""

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k): how many of n images are screened and kept at a noise level."""
        ...

    def supports(
        self, store: ImageStore, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D); a query's must not depend on the others."""
        ...


_ONLY_OPTIMAL = (
    "{0}: got {1}, but only Optimal's error has a proved bound; that of PCA and Kamb is measured "
    "(AdaptiveSchedule)"
)


class GoldDiff(Denoiser):
    """The posterior mean of ``base`` over each query's golden subset instead of all images.

    Args:
        base: any :class:`golddiff.denoiser.Estimator`: Optimal, SCFDM, PCA, Kamb, PSPC, your own.
        schedule: chooses the subset; default the paper's text.
        seed: of the images drawn at random, where the schedule draws any.

    Raises:
        ArgumentError: a base that weighs no images, or has log weights; a schedule that is none, or
            that proves what cannot be proved of the base.

    Source: paper, Sec. 3.4 and Theorem 1.
    """

    weighs_images = True

    def __init__(
        self, base: Estimator, schedule: Schedule | AdaptiveSchedule | None = None, seed: int = 0
    ) -> None:
        if not isinstance(base, Estimator):
            raise ArgumentError(
                f"base: got {type(base).__name__}, expected an estimator that weighs images, "
                "such as Optimal, PCA or Kamb"
            )
        if base.priors:
            raise ArgumentError("base: has log weights; give them to GoldDiff(...) as a whole")
        if isinstance(schedule, AdaptiveSchedule):
            # It depends on what is weighed, so it is fitted to the estimator first.
            if schedule.guarantee and not base.provable:
                raise ArgumentError(_ONLY_OPTIMAL.format("guarantee", type(base).__name__))
            schedule = schedule.fitted(base)
        if schedule is not None and not callable(getattr(schedule, "supports", None)):
            raise ArgumentError(
                f"schedule: got {schedule!r}, expected PaperSchedule, AdaptiveSchedule or another "
                "object with supports(store, x, sigma, label, seed)"
            )
        super().__init__(base.store)
        self.base = base
        self.schedule: Schedule = PaperSchedule() if schedule is None else schedule
        self.seed = check_seed(seed)

    def to(self, device: torch.device) -> GoldDiff:
        """The same, its images compared and weighed on a device; adaptive supports stay here."""
        if isinstance(self.schedule, FittedSchedule):
            return self
        made = copy.copy(self)
        made.base = self.base.to(device)
        made.store = made.base.store
        return made

    def certified(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Denoise a batch, with a proved bound on what the golden subsets leave out.

        For ``Optimal`` alone: of local estimators the error is measured, not proved. The store's
        index is built where there is none.

        Args:
            x: (B, *store.shape) noisy images.
            sigma: noise level, as in a call.
            labels: classes, as in a call.

        Returns:
            (x0, bound): what a call returns, and (B,) float64 Euclidean distances that the full
            scan's posterior mean is at most away, whatever the data (paper, Theorem 1;
            :mod:`golddiff.supports.certificate`). Divided by the root of D they are RMSE.

        Raises:
            ArgumentError: as a call; another estimator than ``Optimal``.
        """
        if not self.base.provable:
            raise ArgumentError(_ONLY_OPTIMAL.format("certified", type(self.base).__name__))
        if not isinstance(self.store, ImageStore):
            raise ArgumentError(
                "certified: nothing is proved over a store in shards; that works on a single store "
                "(golddiff.ImageStore)"
            )
        queries, sigmas, priors = self.checked(x, sigma, labels)
        if any(isinstance(prior, LogWeights) for prior in priors):
            raise ArgumentError("certified: nothing is proved under log weights (given)")
        means, bounds = np.empty_like(queries), np.empty(len(queries))
        for i, (query, level, prior) in enumerate(zip(queries, sigmas, priors, strict=True)):
            assert not isinstance(prior, LogWeights)
            if self._guarantees(self.schedule):
                (one,) = self.schedule.weighed(query[None], level, prior, self.seed)
                means[i], mean, bound = one.mean, one.mean, one.error * math.sqrt(self.store.d)
            else:
                means[i] = self.denoise(query[None], level, prior)[0]
                (_, support), *_ = self.estimator_supports(query[None], level, prior)
                proved = certify(self._index, query, level, support.rows, prior)
                mean, bound = proved.mean, proved.bound
            bounds[i] = bound + float(np.linalg.norm(means[i].astype(np.float64) - mean))
        return torch.from_numpy(means).reshape(x.shape).to(x.device), torch.from_numpy(bounds)

    @cached_property
    def _index(self) -> Index:
        """Opened once: its contents are checked at its first use."""
        assert isinstance(self.store, ImageStore)
        return open_or_build(self.store)

    @staticmethod
    def _guarantees(schedule: Schedule) -> TypeGuard[FittedSchedule]:
        return isinstance(schedule, FittedSchedule) and schedule.settings.guarantee

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Posterior means (b, D), each over its own support."""
        if isinstance(self.schedule, FittedSchedule):
            return self.schedule.means(x, sigma, prior, self.seed)
        supports = self.schedule.supports(self.store, x, sigma, prior, self.seed)
        return self.base.denoise_over(x, sigma, supports)

    @property
    def estimates(self) -> bool:
        """Whether each output's error is estimated; see :meth:`estimated`."""
        return isinstance(self.schedule, FittedSchedule) and not self.schedule.settings.guarantee

    def estimated(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Denoise a batch over adaptive supports, and say how wrong each output is.

        Args:
            x: (B, *store.shape) noisy images.
            sigma: noise level, as in a call.
            labels: classes, as in a call.

        Returns:
            (x0, errors): what a call returns, and (B,) float64 estimates of the RMSE to the full
            scan; 0 where all images were weighed.

        Raises:
            ArgumentError: as a call; another schedule than ``AdaptiveSchedule``.
        """
        if not (isinstance(self.schedule, FittedSchedule) and self.estimates):
            raise ArgumentError(
                f"estimated: got {self.schedule!r}, expected AdaptiveSchedule without guarantee, "
                "which estimates its errors"
            )
        queries, groups = self._groups(x, sigma, labels)
        means, errors = np.empty_like(queries), np.empty(len(queries))
        for key, group in groups.items():
            found = self.schedule.weighed(queries[group], *key, self.seed)
            for i, one in zip(group, found, strict=True):
                means[i], errors[i] = one.mean, one.error
        return torch.from_numpy(means).reshape(x.shape).to(x.device), torch.from_numpy(errors)

    def describe_step(self, sigma: float, label: int | None = None) -> str:
        """How the images of a noise level are chosen, in words."""
        if isinstance(self.schedule, FittedSchedule):
            return self.schedule.describe(sigma, label)
        images = self.store.count_of(label)
        m, k = self.schedule.budgets(sigma, images)
        return f"screens {m:,}, weighs {k:,} of {images:,} images"

    def given(self, log_weights: Any) -> Self:
        """As :meth:`golddiff.denoiser.Denoiser.given`; not with ``guarantee``."""
        if self._guarantees(self.schedule):
            raise ArgumentError("given: nothing is proved under log weights; leave guarantee out")
        return super().given(log_weights)

    def estimator_supports(
        self, x: F32, sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """The base estimator, over each query's golden subset."""
        supports = self.schedule.supports(self.store, x, sigma, prior, self.seed)
        return [(self.base, support) for support in supports]

    def supports(
        self, x: torch.Tensor, sigma: float, labels: Labels = None
    ) -> Sequence[AnySupport]:
        """The golden subset of each query (B, *shape) at one noise level, for inspection."""
        return [
            self.schedule.supports(self.store, q[None], level, prior, self.seed)[0]
            for q, level, prior in zip(*self.checked(x, sigma, labels), strict=True)
        ]
