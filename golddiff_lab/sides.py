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
