"""Create a side of a race and time it, inside its own process."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from golddiff.denoiser import Denoiser
from golddiff.estimators.registry import MethodSettings, create
from golddiff.sampling import sample
from golddiff.store.images import ImageStore
from golddiff.support import TiledSupport
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import peak_resident
from golddiff.system.numbers import F32
from golddiff_lab.peers import PEERS
from golddiff_lab.sides import SideSpec, Step
from golddiff_lab.timing import Timed, timed


def created(method: str, store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
    """Create a method with the settings that apply to it.

    Raises:
        ArgumentError: an invalid setting, or golden subsets larger than the store.
    """
    denoiser = create(method, store, settings.of(method), seed)
    schedule = getattr(denoiser, "schedule", None)
    if schedule is not None:
        schedule.budgets(1.0, store.n)
    return denoiser


class RunningSide:
    """A side in its own process, which times its steps and returns picklable values."""

    def __init__(self, spec: SideSpec) -> None:
        store = ImageStore.open(spec.store, spec.memory_limit)
        self._opened = peak_resident()
        self._step: Step
        if spec.name in PEERS:
            self._step = PEERS[spec.name].make(spec, store)
        else:
            self._step = created(spec.name, store, spec.settings, spec.seed)

    def step(self, x: F32, sigma: float) -> Timed:
        """One step of the whole batch (B, *shape)."""
        queries = torch.from_numpy(x)
        return timed(lambda: self._step(queries, sigma).numpy())

    def run(self, images: int, steps: int, seed: int) -> Timed:
        """A whole DDIM run of the given number of images."""
        denoiser: Any = self._step
        return timed(
            lambda: sample(denoiser, images, steps, seed=seed, trajectory=False).images.numpy()
        )

    def weighed(self, x: F32, sigma: float) -> float | None:
        """Mean number of images in a query's support; tiled supports count distinct images."""
        if not isinstance(self._step, Denoiser):
            return None
        try:
            queries = x.reshape(len(x), -1)
            _, supports = self._step.estimator_supports(queries, sigma, None)
        except ArgumentError:
            return None  # it weighs no images, or does not report its supports
        return float(
            np.mean([len(s.rows) if isinstance(s, TiledSupport) else len(s) for s in supports])
        )

    def memory(self) -> dict[str, int]:
        """Largest resident bytes until the store was open (``opened``), and so far (``peak``)."""
        return {"opened": self._opened, "peak": peak_resident()}
