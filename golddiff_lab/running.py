"""A side of a race, ready to be timed, in a process of its own."""

from __future__ import annotations

import time
from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.registry import METHODS, MethodSettings, create
from golddiff.store.images import ImageStore
from golddiff_lab.machine import peak_resident
from golddiff_lab.peers import PEERS
from golddiff_lab.sides import Check, Side, SideSpec


def make_side(spec: SideSpec, store: ImageStore) -> Side:
    """The side that ``spec`` names.

    Raises:
        GoldDiffError: as the method's or the peer's maker.
    """
    if spec.method is not None:
        settings = own_settings(spec.method, spec.settings)
        denoiser = create(spec.method, store, settings, spec.seed)
        return Side(denoiser, describe=lambda sigma: describe_step(denoiser, sigma))
    assert spec.peer is not None
    return PEERS[spec.peer].make(spec, store)


def own_settings(method: str, settings: MethodSettings) -> MethodSettings:
    """The settings that a method has, out of those given for all."""
    having = METHODS[method].settings
    values = {f.name: getattr(settings, f.name) for f in fields(settings) if f.name in having}
    return MethodSettings(**values)


def describe_step(denoiser: Denoiser, sigma: float) -> str | None:
    """What a step does at sigma, where the denoiser has a method ``describe_step(sigma)``."""
    own = getattr(denoiser, "describe_step", None)
    return str(own(sigma)) if callable(own) else None


class RunningSide:
    """A side that answers questions, in its process; steps are timed here."""

    def __init__(self, spec: SideSpec) -> None:
        store = ImageStore.open(spec.store)
        self._opened = peak_resident()
        self._side = make_side(spec, store)
        self._check: Check | None = None

    def about(self) -> tuple[int, int | None, bool]:
        """Bytes resident at most with the store open; images scanned; whether to warm up."""
        return self._opened, self._side.images, self._side.warm_up

    def step(
        self, x: NDArray[np.float32], sigma: float, which: str = "step"
    ) -> tuple[float, NDArray[np.float32]]:
        """Seconds of one step of the whole batch, and its output.

        Args:
            x: (B, *shape).
            sigma: noise level.
            which: "step", or the "half" or "quarter" of one.
        """
        step, queries = getattr(self._side, which), torch.from_numpy(x)
        start = time.perf_counter()
        out = step(queries, sigma)
        return time.perf_counter() - start, out.numpy()

    def describe(self, sigma: float) -> str | None:
        """The side's own words about a step at sigma."""
        return self._side.describe(sigma)

    def peak(self) -> int:
        """The most bytes resident so far."""
        return peak_resident()

    def check(self, x: NDArray[np.float32], sigma: float) -> tuple[float, str] | None:
        """Largest difference between a peer and ours where their maths is the same; what it is."""
        if self._side.check is None:
            return None
        if self._check is None:
            self._check = self._side.check()
        queries = torch.from_numpy(x)
        difference = self._check.theirs(queries, sigma) - self._check.ours(queries, sigma)
        return float(difference.abs().max()), self._check.text
