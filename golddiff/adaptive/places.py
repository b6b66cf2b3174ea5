"""Where on an image errors are measured: on a few tiles, where outputs have logits of their own.

A full scan of some tiles of many queries tells more, for the same work, than one of whole images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Estimator
from golddiff.kernels.mask_tiles import Side, tile_count, tile_of_each
from golddiff.support import Support

TILES = 4


@dataclass(frozen=True)
class Place:
    """Some outputs of an image.

    Attributes:
        shape: of the image.
        root: side of the tiles; None: the whole image.
        tiles: which of them, ascending.
    """

    shape: tuple[int, ...]
    root: int | None = None
    tiles: tuple[int, ...] = ()

    @classmethod
    def drawn(cls, estimator: Estimator, generator: np.random.Generator) -> Place:
        """Tiles at random, of the largest that can have supports; else the whole image."""
        shape, sides = estimator.store.shape, estimator.tile_sides()
        if not sides:
            return cls(shape)
        root = max(side for side in sides if isinstance(side, int))
        count = tile_count(shape, root)
        tiles = generator.choice(count, min(TILES, count), replace=False)
        return cls(shape, root, tuple(sorted(int(t) for t in tiles)))

    def outputs(self) -> NDArray[np.int64]:
        """The output values (of D)."""
        if self.root is None:
            return np.arange(int(np.prod(self.shape)))
        return np.flatnonzero(np.isin(tile_of_each(self.shape, self.root), self.tiles))

    def tiles_of(self, side: Side) -> list[int]:
        """The tiles of a side, at most the root's, that these outputs lie in."""
        return sorted(set(tile_of_each(self.shape, side)[self.outputs()].tolist()))


def means_at(
    estimator: Estimator,
    x: NDArray[np.float32],
    sigma: float,
    places: Sequence[Place],
    supports: Sequence[Support],
) -> list[NDArray[np.float32]]:
    """Posterior means of queries (b, D) at their places, each over one support."""
    root = places[0].root
    if root is None:
        return list(estimator.denoise_over(x, sigma, supports))
    pieces = [
        (i, t, support)
        for i, (place, support) in enumerate(zip(places, supports, strict=True))
        for t in place.tiles
    ]
    means = estimator.tile_means(x, sigma, root, pieces)
    return [mean[place.outputs()] for mean, place in zip(means, places, strict=True)]


def mean_over_tiles(
    estimator: Estimator,
    x: NDArray[np.float32],
    sigma: float,
    place: Place,
    side: Side,
    supports: Sequence[Support],
) -> NDArray[np.float32]:
    """The mean of one query (D,) at a place, each of its tiles of a side over its own support."""
    pieces = [(0, t, support) for t, support in zip(place.tiles_of(side), supports, strict=True)]
    mean: NDArray[np.float32] = estimator.tile_means(x[None], sigma, side, pieces)[0]
    there: NDArray[np.float32] = mean[place.outputs()]
    return there
