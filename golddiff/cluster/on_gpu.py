"""A shard's partial posteriors on its actor's GPU; choosing the images stays on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import Estimator
from golddiff.device.estimators import DeviceEstimator, device_estimator
from golddiff.device.store import DeviceStore, device_store
from golddiff.device.support import DeviceSupport
from golddiff.posterior import Posterior
from golddiff.support import Support, grouped, whole


class OnGpu:
    """An estimator over a shard on a device.

    Args:
        estimator: the device's counterpart of one.
        store: its images there, streamed where they do not fit.
    """

    def __init__(self, estimator: DeviceEstimator, store: DeviceStore) -> None:
        self._estimator, self._store = estimator, store

    def posterior(
        self, x: NDArray[np.float32], sigma: float, supports: Sequence[Support]
    ) -> Posterior:
        """The partial posterior of queries (b, D), each over a support of at least one image."""
        store, parts, order = self._store, [], []
        queries = store.arranged(torch.from_numpy(x).to(store.device))
        for support, group in grouped(supports):
            there = DeviceSupport.of([whole(support)], store.device)
            for some in torch.split(queries[group], store.plan.queries):
                part = self._estimator.posterior(some, sigma, there)
                numbers = (part.log_max, part.total, part.weighted)
                parts.append(Posterior(*(a.double().cpu().numpy() for a in numbers)))
            order += group
        return Posterior.of_queries(parts, order)


def on_gpu(estimator: Estimator, device: torch.device) -> OnGpu | None:
    """The estimator on a device, made once; None for one that has no counterpart there.

    Raises:
        ArgumentError: the device's memory is too small for the shard.
    """
    kept: dict[torch.device, OnGpu | None] = estimator.__dict__.setdefault("_on_gpu", {})
    if device not in kept:
        store = device_store(estimator.images, device)
        there = device_estimator(estimator, store)
        kept[device] = None if there is None else OnGpu(there, store)
    return kept[device]
