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
    """A picklable description from which another process creates a side.

    Attributes:
        name: a key of ``METHODS`` or ``PEERS``.
        store: folder of the store.
        path: checkout of the peer, if it has one.
        settings: settings of the method; a peer ignores those that it lacks.
        seed: seed of random draws.
        threads: number of threads.
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
    """Two steps that compute the same quantity, so that their outputs can be compared.

    Attributes:
        theirs, ours: the steps of the peer and of golddiff.
        text: description of the quantity.
    """

    theirs: Step
    ours: Step
    text: str


@dataclass(frozen=True)
class Side:
    """One side, ready to be timed.

    Attributes:
        step: a call (x, sigma) -> x0 like a denoiser's.
        check: for a peer, creates the comparison with golddiff's equivalent.
    """

    step: Step
    check: Callable[[], Check] | None = None
