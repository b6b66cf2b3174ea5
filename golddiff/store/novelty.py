"""The training images nearest to some pictures, by exact search: are they new, or copies?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from golddiff.store.images import ImageStore, StoreOrPath, opened
from golddiff.store.nearest import Pixels
from golddiff.store.posteriors import whole
from golddiff.system.arguments import check_batch
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64

SPACING = "spacing-1"
SPACED = 100  # training images whose distance to their nearest other one is measured
QUERIES_AT_ONCE = 256
SAME = 1e-6  # a distance that is rounding
LEAST_SPACING = 1e-12  # of a set where every image has a twin

Watch = Callable[[int, int], None]


@dataclass(frozen=True)
class Novelty:
    """How new pictures are; unpacks as ``novelty, nearest``.

    Attributes:
        novelty: (B,) float64. Distance to the nearest training image, over ``spacing``: 0 is a
            copy, 1 as new as another picture of the same kind. The mean of unseen ones is about 1.
        nearest: (B,) int64 row of the nearest training image; of equals the first.
        distances: (B, 2) float64 distances to it and to the second nearest,
            ||x - x_i|| / sqrt(D) in units of x0.
        spacing: the mean distance that a training image has to its nearest other one, of 100.
        files: (B,) the file of the nearest training image, where the store was made of files.
    """

    novelty: torch.Tensor
    nearest: torch.Tensor
    distances: torch.Tensor
    spacing: float
    files: list[str] | None = None

    @property
    def copies(self) -> torch.Tensor:
        """(B,) whether a picture copies a training image.

        It is at most a third as far from the nearest as from the second nearest one (Yoon et al.
        2023), or the same to the last digit.
        """
        nearest, second = self.distances.unbind(1)
        return (3 * nearest < second) | (nearest == 0)

    @property
    def about(self) -> str:
        """The mean in words."""
        mean = float(self.novelty.mean())
        return f"novelty {mean:.2f} on average (0 a training image, 1 as new as an unseen one)"

    def __repr__(self) -> str:
        copies = int(self.copies.sum())
        return f"<Novelty: {len(self.novelty)} pictures, {copies} copies, {self.about}>"

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield self.novelty
        yield self.nearest


def novelty(
    images: torch.Tensor, store: StoreOrPath, watch: Watch = lambda done, total: None
) -> Novelty:
    """How far pictures are from the training images: any model's, not only this package's.

    Exact search over the whole set, within its memory limit; the first call also measures how far
    100 training images are from their nearest other ones, and keeps that with the store.

    Args:
        images: (B, *store.shape), pixels in [-1, 1].
        store: the training set, of at least two images, or the folder of a store.
        watch: called with the pictures done, and how many there are.

    Raises:
        ArgumentError: images of another shape, not finite, or none; a store of one image.
    """
    store = opened(store)
    check_batch("images", images, store.shape, "store")
    if len(images) == 0:
        raise ArgumentError("images: got none")
    if not torch.isfinite(images).all():
        raise ArgumentError("images: got NaN or infinity, expected finite values")
    x = images.detach().to("cpu", torch.float32).reshape(len(images), store.d).numpy()
    typical = spacing(store)
    parts = []
    for i in range(0, len(x), QUERIES_AT_ONCE):
        watch(i, len(x))
        parts.append(two_nearest(store, np.ascontiguousarray(x[i : i + QUERIES_AT_ONCE])))
    rows, distances = map(np.concatenate, zip(*parts, strict=True))
    found = torch.from_numpy(np.where(distances < SAME, 0.0, distances))
    nearest = rows[:, 0].copy()
    files = store.names_of(nearest)
    return Novelty(found[:, 0] / typical, torch.from_numpy(nearest), found, typical, files)


def spacing(store: ImageStore) -> float:
    """The mean distance that a training image has to its nearest other one, above 0."""
    if store.n < 2:
        raise ArgumentError("novelty: needs two training images or more to compare with, got one")
    kept = store.artifacts.load(SPACING)
    if kept is None:
        rows = np.unique(np.linspace(0, store.n - 1, SPACED).astype(np.int64))
        found, distances = two_nearest(store, store.values(rows))
        others = np.where(found == rows[:, None], np.inf, distances).min(axis=1)
        kept = {"spacing": np.array(max(float(others.mean()), LEAST_SPACING))}
        store.artifacts.save(SPACING, kept)
    return float(kept["spacing"])


def two_nearest(store: ImageStore, x: F32) -> tuple[I64, F64]:
    """The two training images nearest to each query (b, D), of equals the lower row, and how far.

    (b, 2) rows, nearest first, and (b, 2) distances ||x - x_i|| / sqrt(D) in units of x0.
    """
    supports = store.nearest(x, 2, Pixels(), store.everything(None))
    rows = np.array([whole(support).rows for support in supports])
    values = store.values(rows.ravel()).reshape(*rows.shape, -1).astype(np.float64)
    distances = np.sqrt(np.square(values - x[:, None]).mean(axis=2))
    order = np.argsort(distances, axis=1, kind="stable")
    return np.take_along_axis(rows, order, axis=1), np.take_along_axis(distances, order, axis=1)
