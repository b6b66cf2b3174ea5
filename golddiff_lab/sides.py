"""One side of a race: a method or a peer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from golddiff.estimators.registry import MethodSettings
from golddiff.system.residency import DEFAULT_LIMIT

Step = Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class SideSpec:
    """What a process needs to make a side: plain values only.

    Attributes:
        name: of ``METHODS``, or of ``PEERS``.
        store: folder of the store.
        path: checkout of the peer, where it has one.
        settings: of the method; a peer takes those that it has.
        seed: of random draws.
        threads: to use.
        memory_limit: bytes of the store's files that may be resident at a time.
    """

    name: str
    store: Path
    path: Path | None = None
    settings: MethodSettings = field(default_factory=MethodSettings)
    seed: int = 0
    threads: int = 1
    memory_limit: float = DEFAULT_LIMIT


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
    """

    step: Step
    check: Callable[[], Check] | None = None
