"""Importance sampling of images: independent draws that keep heavy images with certainty.

Image i is drawn with probability p_i and then represents 1 / p_i images, so that both sums of the
posterior mean are unbiased for any p_i > 0 (Horvitz & Thompson 1952).

p_i = min(1, k w_i), with the proposal w a mixture of three distributions: the posterior weights by
approximate distances, for each tile; the same at twice the temperature, because a tile's outputs
have other weights than the tile's mean; and uniform weights, which bound 1 / p_i for images whose
approximate distance is far off. Tiles in which few images have most of the weight have larger
errors, so a tile's share of the mixture is the root of the sum of its squared weights.

A draw takes two rounds, so that it works over shards: the shards' :func:`summary` are merged, and
each shard's :func:`proposal` uses the merged sums. Whether an image is drawn depends on a hash of
its row in the whole training set, not on batches, shards or threads.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.draw_weights import add_weights, weight_sums
from golddiff.noise import hash_bits
from golddiff.support import Support
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import for_each, map_ordered

SHARES = (0.5, 0.3, 0.2)  # of the posterior, the tempered posterior and the uniform weights
IMAGES_PER_TASK = 2**16
GROUPS = 4  # random groups of images, from which a draw's error is estimated


@dataclass(frozen=True)
class WeightTotals:
    """Sums of one query's weights by distance, over a set of images, for each of T tiles."""

    best: F64  # (T,) smallest distance; infinite if there are no images
    exact: F64  # (T,) sum of w = exp(-(d - best) gain)
    squares: F64  # (T,) sum of w^2
    tempered: F64  # (T,) sum of sqrt(w)
    images: int  # number of images

    @property
    def effective(self) -> float:
        """The effective number of images, (sum w)^2 / sum w^2, averaged over tiles."""
        return float(np.mean(self.exact**2 / self.squares))

    def merge(self, other: WeightTotals, gain: float) -> WeightTotals:
        """The sums over both sets of images."""
        if not self.images:  # inf - inf would be NaN if the other had none either
            return other
        best = np.minimum(self.best, other.best)
        own_scale, other_scale = (np.exp(-gain * (p.best - best)) for p in (self, other))
        return WeightTotals(
            best,
            self.exact * own_scale + other.exact * other_scale,
            self.squares * own_scale**2 + other.squares * other_scale**2,
            self.tempered * own_scale**0.5 + other.tempered * other_scale**0.5,
            self.images + other.images,
        )


def uniform(seeds: tuple[int, ...], rows: I64) -> F32:
    """A random number in [0, 1) for each image (n,), from its row in the whole training set."""
    # float32 holds 24 bits exactly.
    return (hash_bits(seeds, rows) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def groups(seeds: tuple[int, ...], rows: I64) -> NDArray[np.uint8]:
    """The group of each image (n,), 0 to ``GROUPS`` - 1, from its row in the training set."""
    return (hash_bits(seeds, rows) % np.uint64(GROUPS)).astype(np.uint8)


def summary(distances: F32, gain: float) -> WeightTotals:
    """The sums over n images, from their distances (T, n) to one query."""
    best = distances.min(axis=1, initial=np.inf)

    def tile_sums(tile: int) -> list[float]:
        return list(weight_sums(distances[tile], best[tile], np.float32(gain)))

    exact, squares, tempered = np.array(list(map_ordered(tile_sums, range(len(best))))).T
    return WeightTotals(best.astype(np.float64), exact, squares, tempered, distances.shape[1])


def proposal(distances: F32, gain: float, total: WeightTotals) -> F32:
    """The proposal weights w (n,) of images, from their distances (T, n) to one query.

    The weights of all images that ``total`` sums over, in this shard and others, sum to 1.
    """
    a, b, e = SHARES
    tile = np.sqrt(total.squares) / total.exact
    tile /= tile.sum()
    scaled = np.stack([total.best, a * tile / total.exact, b * tile / total.tempered], axis=1)
    tiles = list(zip(distances, scaled.astype(np.float32), strict=True))
    out = np.full(distances.shape[1], e / total.images, np.float32)

    def add_tiles(start: int) -> None:
        part = slice(start, start + IMAGES_PER_TASK)
        for of_tile, (best, exact, tempered) in tiles:
            add_weights(of_tile[part], best, np.float32(gain), exact, tempered, out[part])

    for_each(add_tiles, range(0, len(out), IMAGES_PER_TASK))
    return out


def drawn(share: F32, rows: I64, count: int, numbers: F32) -> Support:
    """The images drawn out of n, with log weights -log p; at most ``count`` are expected.

    ``share`` (n,) are their proposal weights (:func:`proposal`), ``rows`` (n,) their rows, and
    ``numbers`` (n,) their random numbers (:func:`uniform`).
    """
    positions = np.flatnonzero(numbers < share * np.float32(count))
    p = np.minimum(share[positions] * np.float32(count), np.float32(1))
    return Support(rows[positions], -np.log(p.astype(np.float64)))
