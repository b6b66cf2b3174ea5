"""Kamb's denoiser against its authors' code, patch size by patch size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from golddiff.estimators.registry import MethodSettings
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import use_threads
from golddiff_lab.peers import PEERS, recognise
from golddiff_lab.peers.kamb import CLASSES
from golddiff_lab.process import Process
from golddiff_lab.queries import noised
from golddiff_lab.sides import RunningSide, SideSpec
from golddiff_lab.step.job import at_least
from golddiff_lab.step.run import opened
from golddiff_lab.timing import race

NAME = "kamb-ganguli"


@dataclass(frozen=True)
class PatchJob:
    """What to race.

    Attributes:
        store: folder of the store.
        peer: checkout of Kamb & Ganguli's code.
        sizes: patch sizes, odd.
        boundaries: "zeros" (their boundary-broken machine) and "circular" (ELS).
        sigma: noise level.
        limit: use the first so many images.
        batch, repeats, seed, threads: as in ``golddiff bench step``.
    """

    store: Path
    peer: str
    sizes: tuple[float, ...] = (3, 5, 7, 9, 11, 13, 15)
    boundaries: tuple[str, ...] = ("zeros",)
    sigma: float = 1.0
    limit: int = 2000
    batch: int = 1
    repeats: int = 1
    seed: int = 0
    threads: int | None = None

    def check(self) -> None:
        """Everything that can be told without opening the store.

        Raises:
            ArgumentError: names the argument.
        """
        at_least(self, limit=1, batch=1, repeats=1, threads=1)
        if not 0 < self.sigma < float("inf"):
            raise ArgumentError(f"sigma: got {self.sigma}, expected a finite number above 0")
        for boundary in self.boundaries:
            if boundary not in CLASSES:
                allowed = " or ".join(CLASSES)
                raise ArgumentError(f"boundary: got {boundary!r}, expected {allowed}")
        for size in self.sizes:
            if size < 3 or size % 2 != 1:
                raise ArgumentError(f"patch_size: got {size:g}, expected odd numbers of 3 or more")
        if recognise(self.peer)[0] != NAME:
            title = PEERS[NAME].title
            raise ArgumentError(f"peer: got {self.peer}, expected a checkout of {title}")


@dataclass(frozen=True)
class PatchRow:
    """One patch size: seconds an image for ours and theirs, and how far the outputs differ."""

    boundary: str
    size: int
    ours: float
    theirs: float
    difference: float

    @property
    def ratio(self) -> float:
        """Theirs over ours."""
        return self.theirs / self.ours


def run_patches(job: PatchJob, on_row: Callable[[PatchRow], None]) -> list[PatchRow]:
    """Race every patch size; ``on_row`` is called with each row as it is known.

    Raises:
        GoldDiffError: bad input; a side that fails.
    """
    job.check()
    if job.threads is not None:
        use_threads(job.threads)
    rows: list[PatchRow] = []
    with opened(job.store, job.limit) as store:
        (x,) = noised(store, [job.sigma], job.batch, job.seed)
        threads, path = torch.get_num_threads(), recognise(job.peer)[1]
        common = SideSpec("ours", store.path, "kamb", seed=job.seed, threads=threads)
        pairs = []
        for boundary in job.boundaries:
            for size in map(int, job.sizes):
                settings = MethodSettings(patch_size=size, boundary=boundary)
                ours = replace(common, settings=settings)
                theirs = replace(ours, name="theirs", method=None, peer=NAME, path=path)
                PEERS[NAME].check(theirs, store)
                pairs.append((ours, theirs))
        for ours, theirs in pairs:
            with (
                Process("ours", RunningSide, ours, threads) as a,
                Process("theirs", RunningSide, theirs, threads) as b,
            ):
                timings = race([a, b], x, job.sigma, job.repeats, store.n)
            outs = [timing.out for timing in timings.values() if timing.out is not None]
            seconds = [timing.seconds / len(x) for timing in timings.values()]
            size, boundary = ours.settings.patch_size, ours.settings.boundary
            off = float((outs[0] - outs[1]).abs().max())
            rows.append(PatchRow(str(boundary), int(str(size)), *seconds, off))
            on_row(rows[-1])
    return rows
