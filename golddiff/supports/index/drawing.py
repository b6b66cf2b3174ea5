"""Images drawn at random by weight: an exact head and an unbiased tail in one draw.

Image i is in with probability p_i, apart from the others, and then stands for 1 / p_i images; both
sums of the posterior mean have the full scan's sums as their expectations, however p_i is chosen
(Horvitz & Thompson 1952). Images of p_i = 1 are the exact head.

p_i = min(1, k w_i) with w a mixture: the posterior's weights by approximate distances; the same
at a higher temperature, since a tile's outputs do not weigh exactly as the tile's mean does; and
equal weights, which bound the weight 1 / p_i of an image whose distance estimates its logit badly.

Two rounds, so that parts of a training set can be asked apart: :func:`summary` of each part, which
merge; then :func:`drawn` of each part, by the merged sums. What decides is a hash of the image's
own number, so that nothing else moves it: no batch, no part, no thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.draw_weights import TEMPERATURE, taken, tempered_weights
from golddiff.noise import hashed

SHARES = (0.5, 0.3, 0.2)  # of the posterior, the tempered one, the equal weights
GROUPS = 4  # that images are divided into at random, so that a draw estimates its own error


@dataclass(frozen=True)
class Sums:
    """Of the weights by distance of some images, for one location of one query."""

    best: float  # the least distance; infinite where there are no images
    exact: float  # sum of w = exp(-(d - best) gain)
    squares: float  # sum of w^2
    tempered: float  # sum of w^(1/T)
    images: int  # how many

    @property
    def effective(self) -> float:
        """How many images of equal weight would spread the posterior as much."""
        return self.exact**2 / self.squares

    def merge(self, other: Sums, gain: float) -> Sums:
        """Of both parts' images."""
        best = min(self.best, other.best)
        parts = [
            (part, math.exp(-gain * (part.best - best))) for part in (self, other) if part.images
        ]
        return Sums(
            best,
            sum(part.exact * shrink for part, shrink in parts),
            sum(part.squares * shrink**2 for part, shrink in parts),
            sum(part.tempered * shrink ** (1 / TEMPERATURE) for part, shrink in parts),
            self.images + other.images,
        )


@dataclass(frozen=True)
class Drawn:
    """Images of one location."""

    rows: NDArray[np.int64]  # (k,) ascending
    log_weights: NDArray[np.float64]  # (k,) -log p, 0 for those that are sure
    group: NDArray[np.uint8]  # (k,) 0 to ``GROUPS`` - 1


@dataclass(frozen=True)
class RandomNumbers:
    """What decides about each image, by its number in the whole training set."""

    uniform: NDArray[np.float32]  # (n,) float32 in [0, 1)
    group: NDArray[np.uint8]  # (n,) 0 to ``GROUPS`` - 1

    @classmethod
    def of(cls, seeds: tuple[int, ...], rows: NDArray[np.int64]) -> RandomNumbers:
        """Those of some images, the same for the same seeds."""
        z = hashed(seeds, rows)
        # 24 bits are what a float32 holds; others make the group.
        uniform = (z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24)
        return cls(uniform, (z % np.uint64(GROUPS)).astype(np.uint8))


def summary(distances: NDArray[np.float32], gain: float, out: NDArray[np.float32]) -> Sums:
    """The sums of some images (n,); ``out`` (n,) is filled with their tempered weights."""
    if len(distances) == 0:
        return Sums(math.inf, 0.0, 0.0, 0.0, 0)
    best = float(distances.min())
    return Sums(best, *tempered_weights(distances, best, gain, out), len(distances))


def drawn(
    distances: NDArray[np.float32],
    rows: NDArray[np.int64],
    count: int,
    gain: float,
    total: Sums,
    numbers: RandomNumbers,
    room: NDArray[np.float32],
) -> Drawn:
    """Of some images (n,) those that are in, about ``count`` or fewer of all that ``total`` is of.

    By their distances to one query, less a constant that all images share, and random numbers;
    ``room`` (n,) is memory for tempered weights.
    """
    tempered_weights(distances, total.best, gain, room)
    a, b, e = SHARES
    mixture = (
        np.float32(count * a / total.exact),
        np.float32(count * b / total.tempered),
        np.float32(count * e / total.images),
    )
    places, p = taken(room, mixture, numbers.uniform, min(count, len(rows)))
    return Drawn(rows[places], -np.log(p.astype(np.float64)), numbers.group[places])
