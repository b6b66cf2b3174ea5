"""A denoiser on a device: the same call, the same checks, the work done there."""

from __future__ import annotations

from typing import Protocol

import torch

from golddiff.denoisers.base import Denoiser, Estimator, Labels, Sigma
from golddiff.denoisers.golddiff import GoldDiff
from golddiff.denoisers.wiener import Wiener
from golddiff.device.estimators import DeviceEstimator, device_estimator
from golddiff.device.golden import DevicePaperSchedule
from golddiff.device.store import DeviceStore
from golddiff.device.support import DeviceSupport
from golddiff.errors import ArgumentError
from golddiff.schedules import PaperSchedule


class Step(Protocol):
    """Posterior means (b, D) of queries (b, D), tile order, that share sigma and label."""

    def __call__(self, x: torch.Tensor, sigma: float, label: int | None) -> torch.Tensor:
        """One step."""
        ...


class OnDevice:
    """A denoiser whose calls run on a device.

    It takes the denoiser's place in :func:`golddiff.sample`: only x and the result travel.

    Args:
        denoiser: Optimal, PCA, Kamb, Wiener, or GoldDiff over one of the first three.
        there: its store, on the device.

    Attributes:
        store: the denoiser's.

    Raises:
        ArgumentError: another denoiser, or one over another store.
    """

    def __init__(self, denoiser: Denoiser, there: DeviceStore) -> None:
        if denoiser.store is not there.store:
            raise ArgumentError("there: is not the store that the denoiser is over")
        step = step_on(denoiser, there)
        if step is None:
            raise ArgumentError(
                f"denoiser: {type(denoiser).__name__} does not run on a device; expected Optimal, "
                "PCA, Kamb, Wiener, or GoldDiff over one of the first three"
            )
        self.denoiser = denoiser
        self.store = denoiser.store
        self.there = there
        self._step = step

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """As :meth:`golddiff.denoisers.base.Denoiser.__call__`; the result on x's device."""
        self.denoiser.check_shape(x)
        sigmas = self.denoiser._checked_sigma(sigma, len(x))
        classes = self.denoiser._checked_labels(labels, len(x))
        queries = x.detach().to(self.there.device, torch.float32).reshape(len(x), self.store.d)
        finite = torch.isfinite(queries).all(dim=1)
        if not bool(finite.all()):
            bad = int((~finite).nonzero()[0, 0])
            raise ArgumentError(f"x: image {bad} of the batch holds NaN or infinity")
        queries = self.there.arranged(queries)
        out = torch.empty_like(queries)
        keys = list(zip(sigmas, classes, strict=True))
        for key in dict.fromkeys(keys):
            group = [i for i, k in enumerate(keys) if k == key]
            at_once = self.there.plan.queries
            for start in range(0, len(group), at_once):
                some = torch.tensor(group[start : start + at_once], device=queries.device)
                out[some] = self._step(queries[some], *key)
        return self.there.restored(out).reshape(x.shape).to(x.device)


def step_on(denoiser: Denoiser, store: DeviceStore) -> Step | None:
    """A denoiser's step on a device; None where it has none (a subclass may do anything)."""
    if type(denoiser) is Wiener:
        return WienerStep(denoiser, store)
    if type(denoiser) is GoldDiff:
        base = device_estimator(denoiser.base, store)
        return None if base is None else GoldenStep(denoiser, base, store)
    if isinstance(denoiser, Estimator):
        estimator = device_estimator(denoiser, store)
        return None if estimator is None else FullStep(estimator, store)
    return None


class FullStep:
    """An estimator over every image of the store, or of a class."""

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

    def __call__(self, x: torch.Tensor, sigma: float, label: int | None) -> torch.Tensor:
        """One step."""
        if self._paper is not None:
            return self._base.mean(x, sigma, self._paper.support(x, sigma, label))
        queries = self._store.restored(x).cpu().numpy()
        supports = self._denoiser.schedule.supports(
            self._denoiser.store, queries, sigma, label, self._denoiser.seed
        )
        return self._base.mean(x, sigma, DeviceSupport.of(supports, self._store.device))


class WienerStep:
    """:class:`golddiff.denoisers.wiener.Wiener` in float32: two products with the eigenvectors."""

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
