"""The noisy images of a scaling run: the same for every size and method."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch

from golddiff.denoiser import Denoiser
from golddiff.errors import ArgumentError
from golddiff.sources.augment import NUMBERS, augmented
from golddiff.store.images import ImageStore
from golddiff_lab.race.queries import TRAJECTORY_OF, trajectory

SAID = (
    "queries: by turns points that a 10-step DDIM run of {passing} over the {n:,} images passes, "
    "and held-out images (new crops, flips and colours of images of the set) with noise"
)

# Where no method needs the masks, neither does the run that queries come from.
WITHOUT_MASKS = frozenset({"optimal", "golddiff-optimal", "adaptive-optimal"})


def passing(methods: Iterable[str]) -> str:
    """The method whose run queries are taken from, for a comparison of some methods."""
    return "golddiff-optimal" if WITHOUT_MASKS.issuperset(methods) else TRAJECTORY_OF


def mixed(
    store: ImageStore, denoiser: Denoiser, sigmas: Sequence[float], batch: int, seed: int
) -> list[torch.Tensor]:
    """A batch (batch, *shape) for each noise level: one of a run, one held-out, and so on.

    Args:
        store: the smallest set, whose images all others have too.
        denoiser: over it, whose run it is.
        sigmas: noise levels.
        batch: queries a level.
        seed: of all noise.
    """
    runs, held = -(-batch // 2), batch // 2
    passed = trajectory(denoiser, sigmas, runs, seed)
    clean = held_out(store, held, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    noise = torch.randn(clean.shape, generator=generator)
    levels = []
    for sigma, run in zip(sigmas, passed, strict=True):
        x = torch.empty(batch, *store.shape)
        x[0::2], x[1::2] = run, clean + sigma * noise
        levels.append(x)
    return levels


def held_out(store: ImageStore, count: int, seed: int) -> torch.Tensor:
    """Images (count, *shape) in [-1, 1] like those of the set that are not in it.

    Changed copies of some of its images (:mod:`golddiff.sources.augment`), by another seed than any
    enlarged set's.

    Raises:
        ArgumentError: a store of other data than uint8 images of 1 or 3 channels.
    """
    if not store.is_pixels or len(store.shape) != 3 or store.shape[0] not in (1, 3):
        raise ArgumentError(
            f"data: got {store.shape} {store.manifest.dtype}, expected uint8 images of 1 or 3 "
            "channels"
        )
    generator = np.random.default_rng([4, seed])
    rows = generator.integers(0, store.n, count)
    pixels = store.flat[rows].reshape(count, *store.shape)
    changed = augmented(pixels, generator.random((count, NUMBERS)))
    return torch.from_numpy(changed).float() / 127.5 - 1
