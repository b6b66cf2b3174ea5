"""A denoiser on a device: the same call, the same checks, the work done there."""

from __future__ import annotations

import contextlib

import torch

from golddiff.denoiser import Denoiser, Labels, Sigma
from golddiff.device.graphs import recorded
from golddiff.device.steps import step_on
from golddiff.device.store import DeviceStore
from golddiff.errors import ArgumentError


class OnDevice:
    """A denoiser whose calls run on a device.

    It takes the denoiser's place in :func:`golddiff.sample`: only x and the result travel.

    Args:
        denoiser: Optimal, PCA, Kamb, Wiener, or GoldDiff over one of the first three.
        there: its store, on the device.
        graphs: record each step's launches as a CUDA graph, one for a batch size, noise level and
            class; of no effect on the CPU, where pixels are streamed, and for schedules that run
            on the CPU.

    Attributes:
        store: the denoiser's.

    Raises:
        ArgumentError: another denoiser, or one over another store.
    """

    def __init__(self, denoiser: Denoiser, there: DeviceStore, graphs: bool = False) -> None:
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
        self._step = recorded(step, there.device, there.plan.resident) if graphs else step

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """As :meth:`golddiff.denoiser.Denoiser.__call__`; the result on x's device."""
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
                with self._current():
                    out[some] = self._step(queries[some], *key)
        return self.there.restored(out).reshape(x.shape).to(x.device)

    def _current(self) -> contextlib.AbstractContextManager[object]:
        """Makes the device the current one: kernels are launched on that."""
        if self.there.device.type == "cuda":
            return torch.cuda.device(self.there.device)
        return contextlib.nullcontext()
