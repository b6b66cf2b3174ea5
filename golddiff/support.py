"""A support: which training images are weighed at one step, with what importance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
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

    def sampled(self, sample: RandomSample) -> Support:
        """Some of its images drawn at random: heavy ones are likelier to be in, and stay right.

        Image i has priority w_i / u_i, u_i uniform; the highest are in, and each then weighs at
        least what the best of the others had. Sums over them are unbiased (Duffield, Lund & Thorup
        2007), and images of equal weight are in with equal chances.
        """
        if self.log_weights is None:
            return self.at(sample.places(len(self)))
        uniform = 1 - np.random.default_rng(sample.seeds).random(len(self))
        priority = self.log_weights - np.log(uniform)
        order = np.argsort(-priority, kind="stable")
        if len(order) <= sample.count:
            return self
        kept, bar = np.sort(order[: sample.count]), priority[order[sample.count]]
        return Support(self.rows[kept], np.maximum(self.log_weights[kept], bar))

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
    """

    side: int  # in pixels

    def __str__(self) -> str:
        return f"{self.side}x{self.side} of a channel"


Side = int | OfChannel


def pixels(side: Side) -> int:
    """The side in pixels."""
    return side.side if isinstance(side, OfChannel) else side


def as_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """(C, H, W); points (D,) are images of one row."""
    return shape if len(shape) == 3 else (1, 1, *shape)


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
    """A support for each square tile of the outputs, for estimators that weigh pixel by pixel."""

    side: Side  # of the tiles, in pixels or of a channel; those at a ragged edge are smaller
    tiles: Sequence[Support]  # their supports, row by row

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
        place: how many images of the class the parts before have, where this is one part's.
    """

    images: int
    listing: Callable[[DescribedSupport], NDArray[np.int64]] = field(repr=False)
    label: int | None = None
    sample: RandomSample | None = None
    place: int = 0
    log_weights = None

    def __len__(self) -> int:
        return self.images if self.sample is None else self.sample.count

    def sampled(self, sample: RandomSample) -> DescribedSupport:
        """Some of its images drawn at random."""
        return replace(self, sample=sample)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """(k,) rows, ascending: 8 bytes an image, made where they are asked for."""
        return self.listing(self)

    @cached_property
    def listed(self) -> Support:
        """The same with its rows; one object, so queries that shared this one share it."""
        return Support(self.rows)

    def rows_in(self, of_class: NDArray[np.int64]) -> NDArray[np.int64]:
        """Its rows among those of the class (in the part of the training set), ascending."""
        if self.sample is None:
            return of_class
        drawn = self.sample.places(self.images)
        mine = slice(*np.searchsorted(drawn, [self.place, self.place + len(of_class)]))
        return of_class[drawn[mine] - self.place]


def joined(parts: Sequence[Support]) -> Support:
    """The parts of a support, one after the other."""
    rows = np.concatenate([part.rows for part in parts])
    if all(part.log_weights is None for part in parts):
        return Support(rows)
    return Support(rows, np.concatenate([part.log_importance() for part in parts]))


AnySupport = Support | TiledSupport | DescribedSupport


@dataclass(frozen=True, eq=False)
class LogWeights:
    """A prior over the training images: a log weight for every one of them.

    Attributes:
        values: (N,) float64 natural logs, 0 for the heaviest, -inf for an image that is excluded.
    """

    values: NDArray[np.float64]
    _of_class: dict[int, LogWeights] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> LogWeights:
        """Of log weights some of which are finite; only their differences count."""
        return cls(values - values.max())

    @cached_property
    def support(self) -> Support:
        """The images that are not excluded."""
        rows = np.flatnonzero(self.values > -np.inf)
        weights = self.values[rows]
        return Support(rows, weights if weights.any() else None)

    def of_class(self, label: int, rows: NDArray[np.int64]) -> LogWeights:
        """The same within a class, whose rows are given, not all of them excluded; made once."""
        if label not in self._of_class:
            values = np.full(len(self.values), -np.inf)
            values[rows] = self.values[rows]
            self._of_class[label] = LogWeights.of(values)
        return self._of_class[label]

    def added_to(self, support: Support) -> Support:
        """A support of images chosen by other means, under this prior as well."""
        rows = support.rows
        return Support(rows, support.log_importance() + self.values[rows])


# Which images an output may come from: all alike, those of a class, or all by their log weights.
Prior = int | LogWeights | None


def stream_of(prior: Prior) -> int:
    """A number that keeps the random numbers of one class apart from those of another."""
    return prior + 1 if isinstance(prior, int) else 0


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
    return support if isinstance(support, Support) else support.listed
