"""One side of a race: a method or a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from golddiff.estimators.registry import MethodSettings

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
