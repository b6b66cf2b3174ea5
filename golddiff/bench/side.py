"""One side of a race: something that denoises, and what can be told about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from golddiff.bench.work import Work, step_work
from golddiff.denoiser import Denoiser
from golddiff.registry import METHODS, MethodSettings, create
from golddiff.store.images import ImageStore

Step = Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class SideSpec:
    """What a process needs to make a side: plain values only.

    Attributes:
        name: of the side in tables.
        method: a name of ``METHODS``, or None for a peer.
        peer: name of the peer, or None for a method.
        path: checkout of the peer, where it has one.
        store: folder of the store.
        settings: of the method; a peer takes those that it has.
        seed: of random draws.
        threads: to use.
        images: a peer that scans everything is timed over so many images; 0 for all.
    """

    name: str
    method: str | None
    peer: str | None
    path: Path | None
    store: Path
    settings: MethodSettings
    seed: int
    threads: int
    images: int


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
        work: operations and bytes of a step, or None where they are not known.
        check: for a peer, makes the comparison with our side of the same maths.
        describe: one line about a step at sigma, or None.
        images: how many images ``step`` scans where those are not all that there are.
        half, quarter: then, the same step over a half and a quarter of those.
        warm_up: whether a first step makes anything that later ones use.
    """

    step: Step
    work: Callable[[torch.Tensor, float], Work | None]
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
        denoiser = create(spec.method, store, own_settings(spec), spec.seed)
        return Side(
            denoiser,
            lambda x, sigma: step_work(denoiser, x, sigma),
            describe=lambda sigma: describe_step(denoiser, sigma),
        )
    from golddiff.bench.peers import PEERS

    assert spec.peer is not None
    return PEERS[spec.peer].make(spec, store)


def own_settings(spec: SideSpec) -> MethodSettings:
    """The settings that a method has, out of those given for all sides."""
    assert spec.method is not None
    having = METHODS[spec.method].settings
    given = spec.settings.given().items()
    return MethodSettings(**{k: v for k, v in given if k in having})  # type: ignore[arg-type]


def describe_step(denoiser: Denoiser, sigma: float) -> str | None:
    """What a step does at sigma, where the denoiser has a method ``describe_step(sigma)``."""
    own = getattr(denoiser, "describe_step", None)
    return str(own(sigma)) if callable(own) else None
