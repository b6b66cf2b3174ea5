"""A side of a race, ready to be timed, in a process of its own."""

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
from golddiff_lab.machine import memory, watched_memory
from golddiff_lab.peers import PEERS
from golddiff_lab.sides import Check, Side, SideSpec
from golddiff_lab.timing import Timed, timed


def make_side(spec: SideSpec, store: ImageStore) -> Side:
    """The side that ``spec`` names.

    Raises:
        GoldDiffError: as the method's or the peer's maker.
    """
    if spec.name in PEERS:
        return PEERS[spec.name].make(spec, store)
    return Side(created(spec.name, store, spec.settings, spec.seed))


def created(method: str, store: ImageStore, settings: MethodSettings, seed: int) -> Denoiser:
    """A method with those of the settings that it has.

    Raises:
        ArgumentError: as creating it; subsets of more images than there are.
    """
    denoiser = create(method, store, settings.of(method), seed)
    schedule = getattr(denoiser, "schedule", None)
    if schedule is not None:
        schedule.budgets(1.0, store.n)
    return denoiser


class RunningSide:
    """A side that answers questions with plain values, in its process; steps are timed here."""

    def __init__(self, spec: SideSpec) -> None:
        store = ImageStore.open(spec.store, spec.memory_limit)
        self._memory = {"opened": peak_resident()} | memory()
        self._side = make_side(spec, store)
        self._check: Check | None = None
        self._met: set[float] = set()

    def step(self, x: F32, sigma: float) -> Timed:
        """One step of the whole batch (B, *shape); memory is watched in the first of a level."""
        queries = torch.from_numpy(x)
        if sigma in self._met:
            return timed(lambda: self._side.step(queries, sigma).numpy())
        self._met.add(sigma)
        with watched_memory() as peak:
            first = timed(lambda: self._side.step(queries, sigma).numpy())
        for name, size in peak.items():
            self._memory[name] = max(size, self._memory.get(name, 0))
        return first

    def run(self, images: int, steps: int, seed: int) -> Timed:
        """A whole DDIM run of so many images."""
        denoiser: Any = self._side.step
        return timed(
            lambda: sample(denoiser, images, steps, seed=seed, trajectory=False).images.numpy()
        )

    def about(self, x: F32, sigma: float) -> dict[str, Any]:
        """The side's own words about a step, and how many images it weighs for a query."""
        denoiser = self._side.step
        words = getattr(denoiser, "describe_step", None)
        return {
            "description": str(words(sigma)) if callable(words) else None,
            "images": _weighed(denoiser, x, sigma) if isinstance(denoiser, Denoiser) else None,
        }

    def memory(self) -> dict[str, int]:
        """Bytes: ``opened``, with the store open; at most so far ``peak`` resident, of it
        ``anonymous`` and of mapped ``files``, where the system tells.
        """
        return self._memory | {"peak": peak_resident()}

    def check(self, x: F32, sigma: float) -> tuple[float, str] | None:
        """Largest difference between a peer and ours where their maths is the same; what it is."""
        if self._side.check is None:
            return None
        if self._check is None:
            self._check = self._side.check()
        queries = torch.from_numpy(x)
        difference = self._check.theirs(queries, sigma) - self._check.ours(queries, sigma)
        return float(difference.abs().max()), self._check.text


def _weighed(denoiser: Denoiser, x: F32, sigma: float) -> float | None:
    """Images that a query's support holds on average; of a tiled one the distinct images."""
    try:
        supports = denoiser.estimator_supports(x.reshape(len(x), -1), sigma, None)
    except ArgumentError:
        return None  # it weighs none, or tells not
    return float(
        np.mean([len(s.rows) if isinstance(s, TiledSupport) else len(s) for _, s in supports])
    )
