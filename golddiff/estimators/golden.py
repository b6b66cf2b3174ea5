"""GoldDiff: any estimator over a golden subset that depends on the noise level (paper, Sec. 3)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any, Protocol, Self, TypeGuard

import numpy as np
import torch

from golddiff.denoiser import Denoiser, Estimator, EstimatorSupports
from golddiff.noise import Labels, Sigma
from golddiff.store.device import Device, on_disk
from golddiff.store.images import ImageStore
from golddiff.store.posteriors import check_supports
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
        """(m, k): the numbers of images, out of n, that are screened and kept."""

    def supports(
        self, store: ImageStore, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """The support of each query (b, D), independent of the other queries."""


_ONLY_OPTIMAL = (
    "{0}: got {1}, but only Optimal's error has a proved bound; AdaptiveSchedule estimates the "
    "error of PCA and Kamb"
)


class GoldDiff(Denoiser):
    """The posterior mean of ``base`` over each query's golden subset instead of all images.

    Args:
        base: any :class:`golddiff.denoiser.Estimator`: Optimal, SCFDM, PCA, Kamb, PSPC, your own.
        schedule: chooses the subset; by default the schedule of the paper's text.
        seed: seed of the schedule's random draws, if it makes any.

    Raises:
        ArgumentError: the base weighs no images or has log weights, the schedule is not one, or
            it guarantees an error bound that is not proved for the base.

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
        if schedule is None:
            schedule = PaperSchedule()
        if isinstance(schedule, AdaptiveSchedule):
            # Its supports depend on the estimator's weights, so it is fitted to the estimator.
            if schedule.guarantee and not base.joint:
                raise ArgumentError(_ONLY_OPTIMAL.format("guarantee", type(base).__name__))
            base = copy.copy(base)
            base.store = on_disk(base.store)  # adaptive schedules run on the CPU
            schedule = schedule.fitted(base)
        if isinstance(schedule, type) or not callable(getattr(schedule, "supports", None)):
            raise ArgumentError(
                f"schedule: got {schedule!r}, expected PaperSchedule, AdaptiveSchedule or another "
                "object with supports(store, x, sigma, label, seed)"
            )
        super().__init__(base.store)
        self.base = base
        self.schedule: Schedule = schedule
        self.seed = check_seed(seed)

    def to(self, device: Device) -> GoldDiff:
        """A copy whose images are on a device; adaptive schedules stay on the CPU."""
        if isinstance(self.schedule, FittedSchedule):
            return self
        moved = copy.copy(self)
        moved.base = self.base.to(device)
        moved.store = moved.base.store
        return moved

    def certified(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Denoise a batch, with a proved bound on the error of the golden subsets.

        Only for ``Optimal`` (else see :meth:`estimated`); takes the arguments of a call. Builds the
        store's index if it has none.

        Returns:
            (x0, bound): the output of a call, and on the CPU (B,) float64 upper bounds on its
            Euclidean distance to the full scan's posterior mean, for any data (paper, Theorem 1;
            :mod:`golddiff.supports.certificate`); 0 where a guaranteed schedule weighed all images,
            which is the full scan. Divide by sqrt(D) for an RMSE.

        Raises:
            ArgumentError: as a call; the estimator is not ``Optimal`` or has log weights, or its
                store is in shards.
        """
        if not self.base.joint:
            raise ArgumentError(_ONLY_OPTIMAL.format("certified", type(self.base).__name__))
        if not isinstance(on_disk(self.store), ImageStore):
            raise ArgumentError(
                "certified: got a store in shards, expected a single store (golddiff.ImageStore), "
                "for which the bound is proved"
            )
        queries, sigmas, priors = self.checked(x, sigma, labels)
        means, bounds = np.empty_like(queries), np.empty(len(queries))
        index: Index | None = None
        for i, (query, level, prior) in enumerate(zip(queries, sigmas, priors, strict=True)):
            if isinstance(prior, LogWeights):
                raise ArgumentError("certified: the bound is not proved under log weights (given)")
            if self._guarantees(self.schedule):
                (result,) = self.schedule.results(query[None], level, prior, self.seed)
                means[i] = mean = result.mean
                bound = result.error * math.sqrt(self.store.d)
            else:
                means[i] = self.denoise(query[None], level, prior)[0]
                _, (support,) = self.estimator_supports(query[None], level, prior)
                index = index or open_or_build(on_disk(self.store))
                proved = certify(index, query, level, support.rows, prior)
                mean, bound = proved.mean, proved.bound
            bounds[i] = bound + float(np.linalg.norm(means[i].astype(np.float64) - mean))
        return torch.from_numpy(means).reshape(x.shape).to(x.device), torch.from_numpy(bounds)

    @staticmethod
    def _guarantees(schedule: Schedule) -> TypeGuard[FittedSchedule]:
        return isinstance(schedule, FittedSchedule) and schedule.settings.guarantee

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Posterior means (b, D) of queries (b, D), each over its own support."""
        if isinstance(self.schedule, FittedSchedule):
            results = self.schedule.results(x, sigma, prior, self.seed)
            return np.stack([result.mean for result in results]).astype(np.float32)
        return super().denoise(x, sigma, prior)

    @property
    def estimates(self) -> bool:
        """Whether :meth:`estimated` is available."""
        return isinstance(self.schedule, FittedSchedule) and not self.schedule.settings.guarantee

    def estimated(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Denoise a batch over adaptive supports, with an estimate of each output's error.

        Takes the arguments of a call.

        Returns:
            (x0, errors): the output of a call, and on the CPU (B,) float64 estimates of its RMSE to
            the full scan; 0 if all images were weighed, or if more images did not move the output.

        Raises:
            ArgumentError: as a call; the schedule is not an ``AdaptiveSchedule``, or guarantees.
        """
        if not (isinstance(self.schedule, FittedSchedule) and self.estimates):
            raise ArgumentError(
                f"estimated: got {self.schedule!r}, expected AdaptiveSchedule without guarantee, "
                "which estimates its errors"
            )
        queries, groups = self._groups(x, sigma, labels)
        means, errors = np.empty_like(queries), np.empty(len(queries))
        for key, group in groups.items():
            results = self.schedule.results(queries[group], *key, self.seed)
            for i, result in zip(group, results, strict=True):
                means[i], errors[i] = result.mean, result.error
        return torch.from_numpy(means).reshape(x.shape).to(x.device), torch.from_numpy(errors)

    def given(self, log_weights: Any) -> Self:
        """See the base class; raises ArgumentError for a schedule with ``guarantee``."""
        if self._guarantees(self.schedule):
            raise ArgumentError("given: no bound is proved under log weights; leave out guarantee")
        return super().given(log_weights)

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """The base estimator and the golden subset of each query."""
        supports = self.schedule.supports(self.store, x, sigma, prior, self.seed)
        check_supports(supports, len(x), self.store.n)
        return self.base, supports

    def supports(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None
    ) -> Sequence[AnySupport]:
        """The golden subset of each query, for inspection; takes the arguments of a call."""
        return [support for _, support, *_ in self.supported(x, sigma, labels)]
