"""One size and one method, measured in a process of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.registry import MethodSettings, create
from golddiff.noise import ddim_scheduler
from golddiff.sampling import sample
from golddiff.store.images import ImageStore
from golddiff.support import Support
from golddiff.system.errors import ArgumentError
from golddiff_lab.machine import disk_bytes, memory, peak_resident, watched_memory
from golddiff_lab.queries import STEPS
from golddiff_lab.running import describe_step
from golddiff_lab.truth import rmse

RUN_SHARE = 10  # levels' worth of seconds that the whole run may take
TRIED_AGAIN = 3  # a first call may take so much longer than a level, for what it makes and keeps
FEW = 64  # images that kernels are compiled and masks made with


@dataclass(frozen=True)
class CellSpec:
    """What a process needs to measure a cell: plain values only.

    Attributes:
        store: folder.
        method, settings, seed: of the denoiser.
        batch, repeats, seconds, memory_limit: as of the job.
    """

    store: Path
    method: str
    settings: MethodSettings
    seed: int
    batch: int
    repeats: int
    seconds: float
    memory_limit: float


class Cell:
    """A method over a store, in its process: it answers with plain values."""

    def __init__(self, spec: CellSpec) -> None:
        start = time.perf_counter()
        self._spec = spec
        self._store = ImageStore.open(spec.store, spec.memory_limit)
        self._denoiser = create(spec.method, self._store, spec.settings, spec.seed)
        self._opened = time.perf_counter() - start
        self._before = memory()
        self._peaks: list[dict[str, int]] = [self._before]

    def about(self) -> dict[str, Any]:
        """Images, seconds to open, and memory before and at most during what was asked so far."""
        names = {name for peak in self._peaks for name in peak}
        peak = {name: max(p.get(name, 0) for p in self._peaks) for name in names}
        return {
            "n": self._store.n,
            "method": self._spec.method,
            "seconds_open": self._opened,
            "memory": {"before": self._before, "peak": peak, "high_water": peak_resident()},
        }

    def level(
        self, sigma: float, x: NDArray[np.float32], exact: NDArray[np.float32]
    ) -> dict[str, Any]:
        """Time, reads and error of a step.

        Args:
            sigma: noise level.
            x: (B, *shape) queries; fewer are used where there is no time for all.
            exact: (b, *shape) full scan of the first of them.
        """
        with watched_memory() as peak:
            figures = self._level(sigma, torch.from_numpy(x), torch.from_numpy(exact))
        self._peaks.append(peak)
        return figures

    def run(self, predicted: float) -> dict[str, Any]:
        """The whole 10-step run, with as many images as there is time for; else none.

        Args:
            predicted: seconds an image, by the levels' times.
        """
        spec = self._spec
        images = min(spec.batch, int(RUN_SHARE * spec.seconds / max(predicted, 1e-9)))
        if images < 1:
            return {"images": 0, "seconds": None, "processor_seconds": None, "predicted": predicted}
        ddim_scheduler(STEPS, clip=True)  # its library takes a second to import

        def whole() -> torch.Tensor:
            return sample(
                self._denoiser, images, STEPS, seed=spec.seed, batch_size=images, trajectory=False
            ).images

        with watched_memory() as peak:
            seconds, processor, _ = _timed(whole)
        self._peaks.append(peak)
        return {
            "images": images,
            "seconds": seconds / images,
            "processor_seconds": processor / images,
            "predicted": predicted,
        }

    def _level(self, sigma: float, x: torch.Tensor, exact: torch.Tensor) -> dict[str, Any]:
        spec, denoiser = self._spec, self._denoiser
        making, _, _ = _timed(lambda: _made_ready(denoiser, x[:1], sigma))
        read = disk_bytes()
        first, cpu, out = _timed(lambda: denoiser(x[:1], sigma))
        times, processor, count, warm = [first], [cpu], 1, first <= TRIED_AGAIN * spec.seconds
        if warm:
            one, _, _ = _timed(lambda: denoiser(x[:1], sigma))
            count = max(1, min(len(x), int(spec.seconds / max(one, 1e-9))))
            repeats = max(1, min(spec.repeats, int(spec.seconds / max(one * count, 1e-9))))
            times, processor = [], []
            for _ in range(repeats):
                seconds, cpu, out = _timed(lambda: denoiser(x[:count], sigma))
                times.append(seconds)
                processor.append(cpu)
        after = disk_bytes()
        calls = count * len(times) + 2 if warm else 1
        told = exact[:count]
        return {
            "sigma": sigma,
            "seconds": statistics.median(times) / count,
            "processor_seconds": statistics.median(processor) / count,
            "seconds_measured": [t / count for t in times],
            "seconds_making": making,  # or reading masks: once for each level
            "seconds_first": first,
            "warm": warm,  # else there was time for one call only
            "queries": count,
            "disk_bytes": None if read is None or after is None else (after - read) / calls,
            "truth_queries": len(told),
            "rmse": rmse(out[: len(told)], told) if len(told) else None,
            **_weighed(denoiser, x[:count], sigma),
            "description": describe_step(denoiser, sigma),
        }


def _made_ready(denoiser: Denoiser, x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Have made what is made once for a level: compiled kernels and masks."""
    estimator = getattr(denoiser, "base", denoiser)
    if isinstance(estimator, Estimator):
        few = Support(denoiser.store.rows_of(None)[:FEW])
        estimator.store.posterior(estimator, x.reshape(1, -1).numpy(), sigma, few)
    return x


def _weighed(denoiser: Denoiser, x: torch.Tensor, sigma: float) -> dict[str, float | None]:
    """Images that a query's support holds on average, and the bytes of their pixels.

    Of a tiled support the distinct images.
    """
    try:
        supports = denoiser.estimator_supports(x.reshape(len(x), -1).numpy(), sigma, None)
    except ArgumentError:
        return {"images": None, "pixel_bytes": None}  # it weighs none, or tells not
    images = float(np.mean([_images(support) for _, support in supports]))
    size = denoiser.store.d * denoiser.store.flat.itemsize
    return {"images": images, "pixel_bytes": images * size}


def _images(support: Any) -> int:
    return len(support.rows) if hasattr(support, "tiles") else len(support)


def _timed(work: Callable[[], torch.Tensor]) -> tuple[float, float, torch.Tensor]:
    """Seconds, processor seconds of all threads, and what came out."""
    start, processor = time.perf_counter(), time.process_time()
    out = work()
    return time.perf_counter() - start, time.process_time() - processor, out
