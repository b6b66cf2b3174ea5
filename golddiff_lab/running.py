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
from golddiff_lab.sides import Check, Side, SideSpec
from golddiff_lab.timing import Timed, timed


def make_side(spec: SideSpec, store: ImageStore) -> Side:
    """The side that ``spec`` names.

    Raises:
        GoldDiffError: the method or the peer cannot be created.
    """
    if spec.name in PEERS:
        return PEERS[spec.name].make(spec, store)
    return Side(created(spec.name, store, spec.settings, spec.seed))


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
        self._side = make_side(spec, store)
        self._check: Check | None = None

    def step(self, x: F32, sigma: float) -> Timed:
        """One step of the whole batch (B, *shape)."""
        queries = torch.from_numpy(x)
        return timed(lambda: self._side.step(queries, sigma).numpy())

    def run(self, images: int, steps: int, seed: int) -> Timed:
        """A whole DDIM run of the given number of images."""
        denoiser: Any = self._side.step
        return timed(
            lambda: sample(denoiser, images, steps, seed=seed, trajectory=False).images.numpy()
        )

    def weighed(self, x: F32, sigma: float) -> float | None:
        """Mean number of images in a query's support; tiled supports count distinct images."""
        if not isinstance(self._side.step, Denoiser):
            return None
        try:
            queries = x.reshape(len(x), -1)
            supports = self._side.step.estimator_supports(queries, sigma, None)
        except ArgumentError:
            return None  # it weighs no images, or does not report its supports
        return float(
            np.mean([len(s.rows) if isinstance(s, TiledSupport) else len(s) for _, s in supports])
        )

    def memory(self) -> dict[str, int]:
        """Largest resident bytes until the store was open (``opened``), and so far (``peak``)."""
        return {"opened": self._opened, "peak": peak_resident()}

    def check(self, x: F32, sigma: float) -> tuple[float, str] | None:
        """Largest difference between a peer and golddiff's equivalent, with a description of it."""
        if self._side.check is None:
            return None
        if self._check is None:
            self._check = self._side.check()
        queries = torch.from_numpy(x)
        difference = self._check.theirs(queries, sigma) - self._check.ours(queries, sigma)
        return float(difference.abs().max()), self._check.text
