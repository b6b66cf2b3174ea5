"""Images drawn at random by weight: an exact head and an unbiased tail in one draw.

Image i is in with probability p_i, apart from the others, and then stands for 1 / p_i images; both
sums of the posterior mean have the full scan's sums as their expectations, however p_i is chosen
(Horvitz & Thompson 1952). Images of p_i = 1 are the exact head.

p_i = min(1, k w_i) with w a mixture: the posterior's weights by approximate distances, of each tile
its own; the same at twice the temperature, since a tile's outputs do not weigh exactly as the
tile's mean does; and equal weights, which bound the weight 1 / p_i of an image whose distance
estimates its logit badly. Tiles that few images decide about err more, and count for more: each as
the root of the sum of its squared weights.

Two rounds, so that parts of a training set can be asked apart: :func:`summary` of each part, which
merge; then :func:`proposal` of each part, by the merged sums. What decides is a hash of the image's
own number, so that nothing else moves it: no batch, no part, no thread.
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

SHARES = (0.5, 0.3, 0.2)  # of the posterior, the tempered one, the equal weights
PIECE = 2**16  # images whose shares a thread adds up at once
GROUPS = 4  # that images are divided into at random, so that a draw estimates its own error


@dataclass(frozen=True)
class Sums:
    """Of the weights by distance of some images, at each of T tiles of one query."""

    best: F64  # (T,) the least distance; infinite where there are no images
    exact: F64  # (T,) sum of w = exp(-(d - best) gain)
    squares: F64  # (T,) sum of w^2
    tempered: F64  # (T,) sum of the root of w
    images: int  # how many

    @property
    def effective(self) -> float:
        """How many images of equal weight would spread the posterior as much, in tiles' mean."""
        return float(np.mean(self.exact**2 / self.squares))

    def merge(self, other: Sums, gain: float) -> Sums:
        """Of both parts' images."""
        best = np.minimum(self.best, other.best)
        mine, theirs = (
            np.exp(-gain * (p.best - best)) if p.images else 0 * best for p in (self, other)
        )
        return Sums(
            best,
            self.exact * mine + other.exact * theirs,
            self.squares * mine**2 + other.squares * theirs**2,
            self.tempered * mine**0.5 + other.tempered * theirs**0.5,
            self.images + other.images,
        )


def uniform(seeds: tuple[int, ...], rows: I64) -> F32:
    """What decides about each image (n,), by its number in the whole training set: in [0, 1)."""
    # 24 bits are what a float32 holds.
    return (hash_bits(seeds, rows) >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)


def groups(seeds: tuple[int, ...], rows: I64) -> NDArray[np.uint8]:
    """The group of each image (n,), 0 to ``GROUPS`` - 1, by its number alone."""
    return (hash_bits(seeds, rows) % np.uint64(GROUPS)).astype(np.uint8)


def summary(distances: F32, gain: float) -> Sums:
    """The sums of some images, from their distances (T, n) to one query."""
    best = distances.min(axis=1, initial=np.inf)

    def one(tile: int) -> list[float]:
        return list(weight_sums(distances[tile], best[tile], np.float32(gain)))

    exact, squares, tempered = np.array(list(map_ordered(one, range(len(best))))).T
    return Sums(best.astype(np.float64), exact, squares, tempered, distances.shape[1])


def proposal(distances: F32, gain: float, total: Sums) -> F32:
    """(n,) the share of a draw that each image has, 1 over all images that ``total`` is of.

    From their distances (T, n) to one query.
    """
    a, b, e = SHARES
    tile = np.sqrt(total.squares) / total.exact
    tile /= tile.sum()
    scaled = np.stack([total.best, a * tile / total.exact, b * tile / total.tempered], axis=1)
    tiles = list(zip(distances, scaled.astype(np.float32), strict=True))
    out = np.full(distances.shape[1], e / total.images, np.float32)

    def one(start: int) -> None:
        some = slice(start, start + PIECE)
        for each, (best, exact, tempered) in tiles:
            add_weights(each[some], best, np.float32(gain), exact, tempered, out[some])

    for_each(one, range(0, len(out), PIECE))
    return out


def drawn(share: F32, rows: I64, count: int, numbers: F32) -> Support:
    """Of some images (n,) those that are in, about ``count`` or fewer of all there are.

    By their shares of the draw (:func:`proposal`) and random numbers (:func:`uniform`). Each has
    the log weight -log p, 0 where it is sure.
    """
    places = np.flatnonzero(numbers < share * np.float32(count))
    p = np.minimum(share[places] * np.float32(count), np.float32(1))
    return Support(rows[places], -np.log(p.astype(np.float64)))
