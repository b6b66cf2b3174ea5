"""The training images nearest to some pictures, by exact search: are they new, or copies?"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.errors import ArgumentError
from golddiff.kernels.rows import squared_distances
from golddiff.store.images import ImageStore
from golddiff.store.residency import parts

SPACING = "spacing.safetensors"
SPACED = 100  # training images whose distance to their nearest other one is measured
DISTANCES_AT_ONCE = 1 << 23
SAME = 1e-6  # a distance that is rounding
LEAST_SPACING = 1e-12  # of a set where every image has a twin


@dataclass(frozen=True)
class Novelty:
    """How new pictures are; unpacks as ``novelty, nearest``.

    Attributes:
        novelty: (B,) float64. Distance to the nearest training image, over ``spacing``: 0 is a
            copy, 1 as new as another picture of the same kind. The mean of unseen ones is about 1.
        nearest: (B,) int64 row of the nearest training image; of equals the first.
        distances: (B, 2) float64 distance to it and to the second nearest (infinite where there is
            none), ||x - x_i|| / sqrt(D) in units of x0.
        spacing: the mean distance that a training image has to its nearest other one, of 100.
    """

    novelty: torch.Tensor
    nearest: torch.Tensor
    distances: torch.Tensor = field(repr=False)
    spacing: float

    @property
    def copies(self) -> torch.Tensor:
        """(B,) whether a picture copies a training image.

        It is at most a third as far from the nearest as from the second nearest one (Yoon et al.
        2023), or the same to the last digit.
        """
        nearest, second = self.distances.unbind(1)
        return (3 * nearest < second) | (nearest == 0)

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.novelty
        yield self.nearest


def novelty(images: torch.Tensor, store: ImageStore) -> Novelty:
    """How far pictures are from the training images: any model's, not only this package's.

    One pass over the store, within its memory limit; the first call for a store also measures how
    far 100 of its images are from their nearest other ones, and keeps that with it.

    Args:
        images: (B, *store.shape), pixels in [-1, 1].
        store: the training set, of at least two images, in one place.

    Raises:
        ArgumentError: images of another shape, not finite, or none; a store of one image or in
            shards.
    """
    if not isinstance(images, torch.Tensor) or not images.is_floating_point():
        got = images.dtype if isinstance(images, torch.Tensor) else type(images).__name__
        raise ArgumentError(f"images: got {got}, expected a tensor of floats in [-1, 1]")
    if images.ndim != 1 + len(store.shape) or tuple(images.shape[1:]) != store.shape:
        raise ArgumentError(
            f"images: got shape {tuple(images.shape)}, expected (B, "
            f"{', '.join(map(str, store.shape))}) to match the store"
        )
    if len(images) == 0:
        raise ArgumentError("images: got none")
    if not torch.isfinite(images).all():
        raise ArgumentError("images: got NaN or infinity, expected finite values")
    x = images.detach().to("cpu", torch.float32).reshape(len(images), store.d).numpy()
    typical = spacing(store)
    rows, distances = two_nearest(store, np.ascontiguousarray(x))
    found = torch.from_numpy(np.where(distances < SAME, 0.0, distances))
    return Novelty(found[:, 0] / typical, torch.from_numpy(rows[:, 0].copy()), found, typical)


def spacing(store: ImageStore) -> float:
    """The mean distance that a training image has to its nearest other one, above 0.

    Raises:
        ArgumentError: a store of one image, or in shards.
    """
    if store.shards is not None:
        raise ArgumentError("store: novelty is measured on a single store, not on one in shards")
    if store.n < 2:
        raise ArgumentError("store: got one image, and novelty needs two or more to compare with")
    kept = store.kept(SPACING)
    if kept is not None and kept["spacing"].shape == ():
        return float(kept["spacing"])
    rows = np.unique(np.linspace(0, store.n - 1, SPACED).astype(np.int64))
    distances = two_nearest(store, store.values(rows), omit=rows)[1]
    found = max(float(distances[:, 0].mean()), LEAST_SPACING)
    store.keep(SPACING, {"spacing": np.array(found)})
    return found


def two_nearest(
    store: ImageStore, x: NDArray[np.float32], omit: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The two rows nearest to each query and their distances, over all images of the store.

    Args:
        store: the training set.
        x: (b, D) queries.
        omit: (b,) a row that each query is not compared with (itself), or None.

    Returns:
        (b, 2) rows, nearest first, of equals the lower one; -1 where there is none. And (b, 2)
        distances ||x - x_i|| / sqrt(D) in units of x0, infinite where there is none.
    """
    rows = np.full((len(x), 2), -1)
    squares = np.full((len(x), 2), np.inf)
    for start, part in parts(store.rows_of(None), max(512, DISTANCES_AT_ONCE // max(1, len(x)))):
        found = squared_distances(store.flat, part, x, store.scale, store.offset)
        if omit is not None:
            here = np.flatnonzero((omit >= start) & (omit < start + len(part)))
            found[here, omit[here] - start] = np.inf
        for _ in range(min(2, len(part))):
            best = found.argmin(axis=1)[:, None]  # of equals the first
            both_rows = np.concatenate([rows, part[best]], axis=1)
            both = np.concatenate([squares, np.take_along_axis(found, best, axis=1)], axis=1)
            order = np.argsort(both, axis=1, kind="stable")[:, :2]
            rows = np.take_along_axis(both_rows, order, axis=1)
            squares = np.take_along_axis(both, order, axis=1)
            np.put_along_axis(found, best, np.inf, axis=1)
    return rows, np.sqrt(squares / store.d)
