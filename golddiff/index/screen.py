"""Images compared more finely than by whole coordinates: by those of blocks, a byte a number.

With P the rows of all blocks (:mod:`golddiff.index.blocks`), the distance of an image to a query is
|P x - P x_i|^2 and |r - r_i|^2 for what P lacks of both, of which the length of r_i is known: the
store's norms have it. What an image weighs over one without such detail is
exp((|r|^2 - |r - r_i|^2) / (2 sigma^2)), whose expectation is 1 over queries whose r is noise, of
sigma in every direction: so |P x - P x_i|^2 by itself says what an image is expected to weigh. And
|P x - P x_i|^2 + |r_i|^2 is the distance, but for a product of r and r_i that may have either sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.index.blocks import Blocks, numbers_of
from golddiff.kernels.aligned import LINE
from golddiff.kernels.block_energies import block_energies
from golddiff.kernels.lanes import prefetch
from golddiff.kernels.lowest import lowest
from golddiff.machine import seconds
from golddiff.store.images import ImageStore
from golddiff.store.residency import at_hand, in_place
from golddiff.system.parallel import for_each

NAME = "blocks.bin"
TENSORS = "blocks.safetensors"
ROWS_PER_TASK = 1024
AHEAD = 8  # rows
SPREADS = 1.5  # standard deviations; larger ones are rare, and most of those matter little
DETAIL = 0.5  # how alike two images' details are, that matter to one query
ALWAYS = 64  # images that are weighed
NATS = 10.0  # an image of e^-10 of the best one's weight is one of thousands that count, or none


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract", "arcp", "nsz"})
def _products(flat, rows, vector, unit, out):  # type: ignore[no-untyped-def]
    """The products with a vector, and the squared lengths.

    Rows lie apart in more memory than caches hold: those a few places on are asked for meanwhile,
    else each takes five times as long.
    """
    width, numbers = flat.shape[1], flat.ravel()
    for j in range(len(rows)):
        if j + AHEAD < len(rows):
            for n in range(0, width, LINE):
                prefetch(numbers, rows[j + AHEAD] * width + n)
        row = flat[rows[j]]
        total = length = np.float32(0)
        for n in range(len(vector)):
            value = np.float32(row[n])
            total += value * vector[n]
            own = value * unit[n]
            length += own * own
        out[0, j], out[1, j] = total, length


def shape_of(store: ImageStore) -> tuple[int, int]:
    """Of the file: (N, numbers), int8, in store order."""
    return store.n, numbers_of(store.shape)


@dataclass(frozen=True)
class Compared:
    """What blocks tell of some images and a query.

    Attributes:
        near: (k,) float32 |P x - P x_i|^2, less |P x|^2.
        rest: (k,) float32 |r_i|^2, what P lacks of the image.
    """

    near: NDArray[np.float32]
    rest: NDArray[np.float32]


class Screen:
    """A store's images by their blocks, as they are compared with one query after the other.

    The file is resident as far as it is read, within the store's memory limit; where it would take
    more than half of that, rows are read one by one.

    Args:
        store: the training set.
        path: of the file.
        blocks: how they are seen.
    """

    def __init__(self, store: ImageStore, path: Path, blocks: Blocks) -> None:
        self._store, self._path, self._blocks = store, path, blocks
        self._unit = blocks.scales

    @cached_property
    def _flat(self) -> NDArray[np.int8]:
        # When first needed: coordinates that are swept come first where the limit has no room.
        return self._store.residency.beside(self._path, "int8", shape_of(self._store))

    @property
    def numbers(self) -> int:
        """Of each image."""
        return self._blocks.numbers

    def work(self, images: int) -> float:
        """Predicted seconds of comparing so many images, rows of memory, with one query."""
        return images * self.numbers * (seconds("distance") + seconds("byte") / 2)

    @property
    def images(self) -> int:
        """How many there are."""
        return self._store.n

    @cached_property
    def in_memory(self) -> bool:
        """Whether all images' blocks stay resident."""
        return in_place(self._flat)

    def project(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """A query's blocks, as :meth:`energies` compares them."""
        return self._blocks.project(x)

    def shares(self, relevance: NDArray[np.float32]) -> NDArray[np.float32]:
        """(T, B): of relevance (T, D), shares R in [0, 1], the mean over each block's values."""
        means: NDArray[np.float32] = relevance[:, self._blocks.columns].mean(axis=2)
        return means

    def energies(self, goal: NDArray[np.float32], start: int, count: int) -> NDArray[np.float32]:
        """|P_b x - P_b x_i|^2 of each block b and of ``count`` images from ``start`` on.

        (B, n), n >= count a multiple of 64; what comes after the images is of no use.
        """
        rows = np.arange(start, start + count)
        with at_hand(self._flat, rows) as (flat, places):
            first, each = int(places[0]), len(self._blocks.basis)
            return block_energies(flat, first, count, goal, self._unit, each)

    def compare(self, x: NDArray[np.float32], rows: NDArray[np.int64]) -> Compared:
        """Some images (k,) with a query (D,)."""
        return self._compare(self._blocks.project(x), rows)

    def _compare(self, goal: NDArray[np.float32], rows: NDArray[np.int64]) -> Compared:
        vector = goal * self._unit
        out = np.empty((2, len(rows)), np.float32)

        def task(start: int) -> None:
            part = slice(start, start + ROWS_PER_TASK)
            with at_hand(self._flat, rows[part]) as (flat, places):
                _products(flat, places, vector, self._unit, out[:, part])

        for_each(task, range(0, len(rows), ROWS_PER_TASK))
        products, lengths = out
        rest = np.maximum(self._store.norms[rows] ** 2 - lengths, 0)
        return Compared(lengths - 2 * products, rest)

    def nearest(
        self, x: NDArray[np.float32], sigma: float, rows: NDArray[np.int64], k: int
    ) -> NDArray[np.int64]:
        """At most k of some images (n,), ascending: the nearest to a query (D,) that may matter.

        An image counts while its distance is within some 2 sigma^2 of the least. What P lacks
        of it, of length rho, meets the query's noise, so a distance is off by a number of standard
        deviation 2 sigma rho; and the query's own detail, beyond its blocks and its noise, is more
        alike to one image's than to another's. Where noise hides how much detail that is, this is
        a guess: the nearest few are weighed whatever it says.
        """
        goal = self._blocks.project(x)
        compared = self._compare(goal, rows)
        likely = compared.near + compared.rest
        off = 2 * (SPREADS * sigma + DETAIL * _detail(x, goal, sigma)) * np.sqrt(compared.rest)
        chosen = likely - off <= likely.min() + NATS * 2 * sigma**2
        chosen[lowest(compared.near, min(k, ALWAYS))] = True
        few = lowest(compared.near, k)
        nearest: NDArray[np.int64] = rows[few[chosen[few]]]
        return nearest


def _detail(x: NDArray[np.float32], goal: NDArray[np.float32], sigma: float) -> float:
    """Length of what P lacks of the image in a noised one; 0 where noise may be all."""
    beyond = len(x) - len(goal)
    noise = sigma**2 * (beyond + math.sqrt(2 * beyond))
    return math.sqrt(max(0.0, float(x @ x) - float(goal @ goal) - noise))
