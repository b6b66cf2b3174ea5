"""A support: which training images are weighed at one step, with what importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

ABSENT = -1e300  # a log weight of nothing, finite, so that differences of two are no NaN


@dataclass(frozen=True)
class Support:
    """The training images that one query (or several alike) is compared with.

    Attributes:
        rows: (k,) int64 indices into the store, ascending (store order).
        log_weights: (k,) float64 log importance weights added to the logits, or None for all 0.
            An image drawn at random with probability p stands for 1/p images: log weight -log p.
    """

    rows: NDArray[np.int64]
    log_weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def log_importance(self) -> NDArray[np.float64]:
        """The log weights (k,), zeros where there are none."""
        return np.zeros(len(self.rows)) if self.log_weights is None else self.log_weights

    def at(self, places: NDArray[np.int64]) -> Support:
        """The images at some places of it, with their weights."""
        weights = self.log_weights
        return Support(self.rows[places], None if weights is None else weights[places])

    def split(self, size: int) -> list[Support]:
        """Consecutive parts of at most ``size`` images, in order."""
        return [
            Support(
                self.rows[i : i + size],
                None if self.log_weights is None else self.log_weights[i : i + size],
            )
            for i in range(0, len(self.rows), size)
        ]


@dataclass(frozen=True)
class OfChannel:
    """Square tiles of the outputs of one channel: those of the first channel, row by row, first.

    An int instead is the side in pixels of tiles that hold the outputs of all channels.

    Attributes:
        side: in pixels.
    """

    side: int

    def __str__(self) -> str:
        return f"{self.side}x{self.side} of a channel"


Side = int | OfChannel


def pixels(side: Side) -> int:
    """The side in pixels."""
    return side.side if isinstance(side, OfChannel) else side


def tile_count(shape: tuple[int, ...], side: Side) -> int:
    """How many tiles images of a shape (C, H, W) have."""
    rows, columns = tile_grid(shape, pixels(side))
    return rows * columns * (shape[0] if isinstance(side, OfChannel) else 1)


def tile_grid(shape: tuple[int, ...], side: int) -> tuple[int, int]:
    """(rows, columns) of the tiles of a side that cover images of a shape (C, H, W)."""
    return -(-shape[1] // side), -(-shape[2] // side)


def tile_of_each(shape: tuple[int, ...], side: Side) -> NDArray[np.int64]:
    """The tile that each output value (D,) lies in, counted row by row."""
    channel, place = np.divmod(np.arange(int(np.prod(shape))), shape[1] * shape[2])
    long = pixels(side)
    rows, columns = tile_grid(shape, long)
    tiles: NDArray[np.int64] = place // shape[2] // long * columns + place % shape[2] // long
    return tiles + channel * (rows * columns) if isinstance(side, OfChannel) else tiles


@dataclass(frozen=True)
class TiledSupport:
    """A support for each square tile of the outputs, for estimators that weigh pixel by pixel.

    Attributes:
        side: of the tiles, in pixels or of a channel; those at a ragged edge are smaller.
        tiles: their supports, row by row.
    """

    side: Side
    tiles: Sequence[Support]

    def __len__(self) -> int:
        """The images of the tile that has fewest."""
        return min(map(len, self.tiles))

    @property
    def rows(self) -> NDArray[np.int64]:
        """Every image that some tile weighs, ascending."""
        return np.unique(np.concatenate([tile.rows for tile in self.tiles]))

    def of_tile(self, tile: int, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """A tile's log importance weights of some rows, ``ABSENT`` for those it does not weigh."""
        support = self.tiles[tile]
        weights = np.full(len(rows), ABSENT)
        _, theirs, mine = np.intersect1d(rows, support.rows, return_indices=True)
        weights[theirs] = support.log_importance()[mine]
        return weights


@dataclass(frozen=True)
class RandomSample:
    """Images drawn at random without replacement, all with the same chance.

    Attributes:
        count: how many.
        seeds: of the draw: the first ``count`` of ``default_rng(seeds).permutation(images)``.
    """

    count: int
    seeds: tuple[int, ...]

    def places(self, images: int) -> NDArray[np.int64]:
        """Which of so many images they are, ascending; 8 bytes for each of all while it runs."""
        drawn: NDArray[np.int64] = np.random.default_rng(self.seeds).permutation(images)
        return np.sort(drawn[: self.count])


@dataclass(frozen=True, eq=False)
class DescribedSupport:
    """A support that is described, not listed: the images of a class, or a sample of them.

    Who holds the images lists them, each part of a training set its own.

    Attributes:
        images: how many there are of the class, in all parts of the training set.
        listing: gives the rows of this support, where somebody asks for them.
        label: the class; None: all images.
        sample: drawn of them; None: all.
        without: rows of the class that are left out.
    """

    images: int
    listing: Callable[[DescribedSupport], NDArray[np.int64]] = field(repr=False)
    label: int | None = None
    sample: RandomSample | None = None
    without: tuple[int, ...] = ()
    log_weights = None

    def __len__(self) -> int:
        images = self.images if self.sample is None else self.sample.count
        return images - len(self.without)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """(k,) rows, ascending: 8 bytes an image, made where they are asked for."""
        return self.listing(self)

    def rows_in(
        self, of_class: NDArray[np.int64], place: int = 0, first: int = 0
    ) -> NDArray[np.int64]:
        """Its rows in a part of the training set, ascending, counted from the part's first image.

        Args:
            of_class: rows of the class in the part, counted so.
            place: how many images of the class the parts before it have.
            first: row in the training set of the part's first image.
        """
        rows = of_class
        if self.sample is not None:
            drawn = self.sample.places(self.images)
            mine = slice(*np.searchsorted(drawn, [place, place + len(rows)]))
            rows = rows[drawn[mine] - place]
        return rows[~np.isin(rows, np.array(self.without) - first)] if self.without else rows


AnySupport = Support | TiledSupport | DescribedSupport


def one_each(supports: AnySupport | Sequence[AnySupport], queries: int) -> Sequence[AnySupport]:
    """A support for each of so many queries, of one for all or of one each."""
    if isinstance(supports, Support | TiledSupport | DescribedSupport):
        return [supports] * queries
    return supports


def grouped(supports: Sequence[AnySupport]) -> list[tuple[AnySupport, list[int]]]:
    """Each support once, with the queries that share it (the same object)."""
    groups: dict[int, tuple[AnySupport, list[int]]] = {}
    for query, support in enumerate(supports):
        groups.setdefault(id(support), (support, []))[1].append(query)
    return list(groups.values())


def listed(support: Support | DescribedSupport) -> Support:
    """The support with its rows listed."""
    return support if isinstance(support, Support) else Support(support.rows)
