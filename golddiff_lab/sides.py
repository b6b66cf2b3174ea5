"""One side of a race: a method or a peer, ready to be timed, in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.registry import METHODS, MethodSettings, make_denoiser
from golddiff.store.images import ImageStore
from golddiff_lab.machine import peak_resident

Step = Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class SideSpec:
    """What a process needs to make a side: plain values only.

    Attributes:
        name: of the side in tables.
        store: folder of the store.
        method: a name of ``METHODS``, or None for a peer.
        peer: name of the peer, or None for a method.
        path: checkout of the peer, where it has one.
        settings: of the method; a peer takes those that it has.
        seed: of random draws.
        threads: to use.
        images: a peer that scans everything is timed over so many images; 0 for all.
    """

    name: str
    store: Path
    method: str | None = None
    peer: str | None = None
    path: Path | None = None
    settings: MethodSettings = field(default_factory=MethodSettings)
    seed: int = 0
    threads: int = 1
    images: int = 0


@dataclass(frozen=True)
class Check:
    """Two steps whose maths is the same, for comparing their outputs.

    Attributes:
        theirs, ours: the steps.
        text: what is compared.
    """

    theirs: Step
    ours: Step
    text: str


@dataclass(frozen=True)
class Side:
    """One side, ready to be timed.

    Attributes:
        step: (x, sigma) -> x0, as a denoiser's call.
        check: for a peer, makes the comparison with our side of the same maths.
        describe: one line about a step at sigma, or None.
        images: how many images ``step`` scans where those are not all that there are.
        half, quarter: then, the same step over a half and a quarter of those.
        warm_up: whether a first step makes anything that later ones use.
    """

    step: Step
    check: Callable[[], Check] | None = None
    describe: Callable[[float], str | None] = lambda sigma: None
    images: int | None = None
    half: Step | None = None
    quarter: Step | None = None
    warm_up: bool = True


def make_side(spec: SideSpec, store: ImageStore) -> Side:
    """The side that ``spec`` names.

    Raises:
        GoldDiffError: as the method's or the peer's maker.
    """
    if spec.method is not None:
        settings = own_settings(spec.method, spec.settings)
        denoiser = make_denoiser(spec.method, store, settings, spec.seed)
        return Side(denoiser, describe=lambda sigma: describe_step(denoiser, sigma))
    from golddiff_lab.peers import PEERS

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
