"""One denoising step of each method on a device, and which methods have one."""

from __future__ import annotations

from typing import Protocol

import torch

from golddiff.denoiser import Denoiser, Estimator
from golddiff.device.estimators import DeviceEstimator, device_estimator
from golddiff.device.golden import DevicePaperSchedule
from golddiff.device.store import DeviceStore
from golddiff.device.support import DeviceSupport
from golddiff.estimators.wiener import Wiener
from golddiff.golden import GoldDiff
from golddiff.support import whole
from golddiff.supports.adaptive import FittedSchedule
from golddiff.supports.paper import PaperSchedule


class Step(Protocol):
    """Posterior means (b, D) of queries (b, D), tile order, that share sigma and label.

    Attributes:
        capturable: whether it neither works on the CPU nor waits for the device.
    """

    capturable: bool

    def __call__(self, x: torch.Tensor, sigma: float, label: int | None) -> torch.Tensor:
        """One step."""
        ...


def step_on(denoiser: Denoiser, store: DeviceStore) -> Step | None:
    """A denoiser's step on a device; None where it has none (a subclass may do anything)."""
    if type(denoiser) is Wiener:
        return WienerStep(denoiser, store)
    if type(denoiser) is GoldDiff:
        if isinstance(denoiser.schedule, FittedSchedule):
            return None  # adaptive supports may be tiled, which has no kernel on a device yet
        base = device_estimator(denoiser.base, store)
        return None if base is None else GoldenStep(denoiser, base, store)
    if isinstance(denoiser, Estimator):
        estimator = device_estimator(denoiser, store)
        return None if estimator is None else FullStep(estimator, store)
    return None


class FullStep:
    """An estimator over every image of the store, or of a class."""

    capturable = True

    def __init__(self, estimator: DeviceEstimator, store: DeviceStore) -> None:
        self._estimator, self._store = estimator, store

    def __call__(self, x: torch.Tensor, sigma: float, label: int | None) -> torch.Tensor:
        """One step."""
        support = DeviceSupport(self._store.rows_of(label)[None])
        return self._estimator.mean(x, sigma, support)


class GoldenStep:
    """An estimator over each query's golden subset.

    The paper's schedule runs on the device; any other says its supports on the CPU, and only the
    estimator's part, by far the larger, runs on the device.
    """

    def __init__(self, denoiser: GoldDiff, base: DeviceEstimator, store: DeviceStore) -> None:
        self._denoiser, self._base, self._store = denoiser, base, store
        schedule = denoiser.schedule
        self._paper = (
            DevicePaperSchedule(schedule, store, denoiser.seed)
            if type(schedule) is PaperSchedule
            else None
        )
        self.capturable = self._paper is not None

    def __call__(self, x: torch.Tensor, sigma: float, label: int | None) -> torch.Tensor:
        """One step."""
        if self._paper is not None:
            return self._base.mean(x, sigma, self._paper.support(x, sigma, label))
        queries = self._store.restored(x).cpu().numpy()
        supports = self._denoiser.schedule.supports(
            self._denoiser.store, queries, sigma, label, self._denoiser.seed
        )
        return self._base.mean(
            x, sigma, DeviceSupport.of([whole(s) for s in supports], self._store.device)
        )


class WienerStep:
    """:class:`golddiff.estimators.wiener.Wiener` in float32: two products with the eigenvectors."""

    capturable = True

    def __init__(self, denoiser: Wiener, store: DeviceStore) -> None:
        self._store = store
        self._kept: dict[int | None, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}

    def __call__(self, x: torch.Tensor, sigma: float, label: int | None) -> torch.Tensor:
        """One step."""
        mean, eigenvalues, vectors = self._factor(label)
        gains = eigenvalues / (eigenvalues + sigma**2)
        return mean + ((x - mean) @ vectors * gains) @ vectors.T

    def _factor(self, label: int | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if label not in self._kept:
            factor, store = self._store.store.factor(label), self._store
            mean, values, vectors = (
                torch.from_numpy(a).to(store.device, torch.float32)
                for a in (factor.mean, factor.eigenvalues, factor.eigenvectors)
            )
            self._kept[label] = mean[store.order], values, vectors[store.order]
        return self._kept[label]
