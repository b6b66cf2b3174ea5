"""Kamb's denoiser against its authors' code, patch size by patch size."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from golddiff.errors import ArgumentError
from golddiff.registry import MethodSettings
from golddiff.store.images import ImageStore
from golddiff.system.parallel import use_threads
from golddiff_lab.peers import PEERS, recognise
from golddiff_lab.peers.kamb import CLASSES
from golddiff_lab.race.queries import noised
from golddiff_lab.race.side import SideSpec
from golddiff_lab.race.stores import first_images
from golddiff_lab.race.timing import race
from golddiff_lab.race.worker import Remote


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
    sizes: tuple[int, ...] = (3, 5, 7, 9, 11, 13, 15)
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
        for name in ("limit", "batch", "repeats"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name}: got {getattr(self, name)}, expected 1 or more")
        if self.threads is not None and self.threads < 1:
            raise ArgumentError(f"threads: got {self.threads}, expected 1 or more")
        if not 0 < self.sigma < float("inf"):
            raise ArgumentError(f"sigma: got {self.sigma}, expected a finite number above 0")
        for boundary in self.boundaries:
            if boundary not in CLASSES:
                allowed = " or ".join(CLASSES)
                raise ArgumentError(f"boundary: got {boundary!r}, expected {allowed}")
        for size in self.sizes:
            if size < 3 or size % 2 == 0:
                raise ArgumentError(f"patch_size: got {size}, expected odd numbers of 3 or more")
        if recognise(self.peer)[0] != NAME:
            raise ArgumentError(f"peer: got {self.peer}, expected a checkout of {_TITLE}")


NAME = "kamb-ganguli"
_TITLE = PEERS[NAME].title


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
    _, path = recognise(job.peer)
    rows = []
    with contextlib.ExitStack() as stack:
        store = ImageStore.open(job.store)
        if job.limit < store.n:
            store = stack.enter_context(first_images(store, job.limit))
        (x,) = noised(store, [job.sigma], job.batch, job.seed)
        for boundary in job.boundaries:
            for size in job.sizes:
                rows.append(_row(job, store, path, x, boundary, size))
                on_row(rows[-1])
    return rows


def _row(
    job: PatchJob, store: ImageStore, path: Path | None, x: torch.Tensor, boundary: str, size: int
) -> PatchRow:
    settings = MethodSettings(patch_size=size, boundary=boundary)
    threads = torch.get_num_threads()
    ours = SideSpec("ours", "kamb", None, None, store.path, settings, job.seed, threads, 0)
    theirs = SideSpec("theirs", None, NAME, path, store.path, settings, job.seed, threads, 0)
    with Remote(ours) as a, Remote(theirs) as b:
        timings = race([a, b], x, job.sigma, job.repeats, store.n)
    first, second = timings["ours"].out, timings["theirs"].out
    assert first is not None
    assert second is not None
    return PatchRow(
        boundary,
        size,
        timings["ours"].seconds / len(x),
        timings["theirs"].seconds / len(x),
        float((first - second).abs().max()),
    )
