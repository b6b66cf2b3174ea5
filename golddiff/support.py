"""Supports and priors: which training images are weighed at a step, with which log weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

HEAVIEST = 64  # images of a prior that bound the weights of the others
# Log weight of an excluded image; finite, so that differences and quotients by a gain are not NaN
ABSENT = -1e200


@dataclass(frozen=True)
class Support:
    """The training images that are weighed for one query, or for several that share them.

    Attributes:
        rows: (k,) int64 indices into the store, ascending (store order).
        log_weights: (k,) float64 log importance weights, added to the logits; None: all 0. An image
            drawn at random with probability p represents 1/p images: log weight -log p. A batch
            over the same rows has log weights (b, k), one row per query.
    """

    rows: NDArray[np.int64]
    log_weights: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def log_importance(self) -> NDArray[np.float64]:
        """The log weights (k,); zeros if ``log_weights`` is None."""
        return np.zeros(len(self.rows)) if self.log_weights is None else self.log_weights

    def at(self, positions: NDArray[np.int64] | slice) -> Support:
        """The images at the given positions in ``rows``, with their weights."""
        weights = self.log_weights
        return Support(self.rows[positions], None if weights is None else weights[..., positions])

    def sampled(self, sample: RandomSample) -> Support:
        """A random proper subset by priority sampling: heavier images are kept more often.

        Image i has priority w_i / u_i with u_i uniform. The images of highest priority are kept;
        their weights are raised to at least the highest priority left out, which keeps weighted
        sums unbiased (Duffield, Lund & Thorup 2007). Without log weights, the draw is uniform.
        """
        if self.log_weights is None:
            return self.at(sample.positions(len(self)))
        uniform = 1 - np.random.default_rng(sample.seeds).random(len(self))
        priority = self.log_weights - np.log(uniform)
        order = np.argsort(-priority, kind="stable")
        kept, threshold = np.sort(order[: sample.count]), priority[order[sample.count]]
        return Support(self.rows[kept], np.maximum(self.log_weights[kept], threshold))

    def split(self, size: int) -> list[Support]:
        """Consecutive parts of at most ``size`` images, in order."""
        return [self.at(slice(i, i + size)) for i in range(0, len(self), size)]


@dataclass(frozen=True)
class OfChannel:
    """The side of square tiles that cover a single channel, in order (channel, row, column).

    A :data:`Side` that is an int means tiles that span all channels.
    """

    side: int  # in pixels


Side = int | OfChannel


def pixels(side: Side) -> int:
    """The side of a tile in pixels."""
    return side.side if isinstance(side, OfChannel) else side


def as_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape as (C, H, W); points (D,) become images of one row."""
    return shape if len(shape) == 3 else (1, 1, *shape)


def tile_of_each(shape: tuple[int, ...], side: Side) -> NDArray[np.int64]:
    """The tile index of each output value, (D,), in row-major order of the tiles."""
    channel, pixel = np.divmod(np.arange(int(np.prod(shape))), shape[1] * shape[2])
    length = pixels(side)
    rows, columns = -(-shape[1] // length), -(-shape[2] // length)
    tiles: NDArray[np.int64] = pixel // shape[2] // length * columns + pixel % shape[2] // length
    return tiles + channel * (rows * columns) if isinstance(side, OfChannel) else tiles


def tile_count(shape: tuple[int, ...], side: Side | None) -> int:
    """The number of tiles of an image of shape (C, H, W); 1 without tiles."""
    return 1 if side is None else int(tile_of_each(shape, side).max()) + 1


@dataclass(frozen=True)
class TiledSupport:
    """One support per square tile, for estimators with separate weights per pixel or value."""

    side: Side  # side of the tiles; tiles at the right and bottom edges may be smaller
    tiles: Sequence[Support]  # the support of each tile, in row-major order

    def __len__(self) -> int:
        """The size of the smallest tile support."""
        return min(map(len, self.tiles))

    @property
    def rows(self) -> NDArray[np.int64]:
        """The rows that at least one tile weighs, ascending."""
        return np.unique(np.concatenate([tile.rows for tile in self.tiles]))

    def log_weights_of(self, rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Log importance weights of rows in every tile, (T, k); ``ABSENT`` if it lacks a row."""
        weights = np.full((len(self.tiles), len(rows)), ABSENT)
        for of_tile, support in zip(weights, self.tiles, strict=True):
            _, targets, sources = np.intersect1d(rows, support.rows, return_indices=True)
            of_tile[targets] = support.log_importance()[sources]
        return weights


@dataclass(frozen=True)
class RandomSample:
    """A uniform random sample without replacement.

    Attributes:
        count: sample size.
        seeds: the sample is the first ``count`` of ``default_rng(seeds).permutation(images)``.
    """

    count: int
    seeds: tuple[int, ...]

    def positions(self, images: int) -> NDArray[np.int64]:
        """Ascending positions of the sample among ``images``; needs 8 bytes per image."""
        drawn: NDArray[np.int64] = np.random.default_rng(self.seeds).permutation(images)
        return np.sort(drawn[: self.count])


@dataclass(frozen=True, eq=False)
class RuleSupport:
    """A support given by a rule (a class, or a random sample of it) instead of a list of rows.

    Each shard of a training set expands the rule into its own rows.

    Attributes:
        class_size: number of images of the class in the whole training set.
        listing: function that returns the rows of this support.
        label: the class; None: all images.
        sample: random sample of the class; None: the whole class.
        offset: number of the class's images in all earlier shards.
    """

    class_size: int
    listing: Callable[[RuleSupport], NDArray[np.int64]] = field(repr=False)
    label: int | None = None
    sample: RandomSample | None = None
    offset: int = 0
    log_weights = None

    def __len__(self) -> int:
        return self.class_size if self.sample is None else self.sample.count

    def log_importance(self) -> NDArray[np.float64]:
        """The log weights (k,), all zero."""
        return np.zeros(len(self))

    def at(self, positions: NDArray[np.int64] | slice) -> Support:
        """The images at the given positions in ``rows``."""
        return self.with_rows.at(positions)

    def sampled(self, sample: RandomSample) -> RuleSupport:
        """A random sample of the images."""
        return replace(self, sample=sample)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """(k,) ascending rows; computed on first access, 8 bytes per image."""
        return self.listing(self)

    @cached_property
    def with_rows(self) -> Support:
        """The support with explicit rows; cached, so that queries share a single object."""
        return Support(self.rows)

    def rows_in(self, of_class: NDArray[np.int64]) -> NDArray[np.int64]:
        """The ascending rows of this support, given the shard's rows of the class."""
        if self.sample is None:
            return of_class
        drawn = self.sample.positions(self.class_size)
        own = slice(*np.searchsorted(drawn, [self.offset, self.offset + len(of_class)]))
        return of_class[drawn[own] - self.offset]


def concatenated(parts: Sequence[Support]) -> Support:
    """The concatenation of several supports."""
    rows = np.concatenate([part.rows for part in parts])
    if all(part.log_weights is None for part in parts):
        return Support(rows)
    return Support(rows, np.concatenate([part.log_importance() for part in parts]))


AnySupport = Support | TiledSupport | RuleSupport
Supports = AnySupport | Sequence[AnySupport]  # one for all queries, or one for each query


@dataclass(frozen=True, eq=False)
class LogWeights:
    """A prior over the training images, as one log weight per image.

    Attributes:
        values: (N,) float64 natural logs, scaled so that the largest is 0; -inf excludes an image.
    """

    values: NDArray[np.float64]
    _of_class: dict[int, LogWeights] = field(default_factory=dict, repr=False)

    @classmethod
    def of(cls, values: NDArray[np.float64]) -> LogWeights:
        """Normalise log weights, at least one of them finite; only differences matter."""
        return cls(values - values.max())

    @cached_property
    def support(self) -> Support:
        """The images that are not excluded."""
        rows = np.flatnonzero(self.values > -np.inf)
        weights = self.values[rows] if len(rows) < len(self.values) else self.values
        return Support(rows, weights if weights.any() else None)

    @cached_property
    def heaviest(self) -> Support:
        """The images of the largest log weights, at most 64."""
        rows = np.sort(np.argsort(-self.values, kind="stable")[:HEAVIEST])
        return Support(rows, self.values[rows])

    def above(self, log_weight: float) -> Support:
        """The images whose log weight is at least ``log_weight``."""
        rows = np.flatnonzero(self.values >= log_weight)
        return Support(rows, self.values[rows])

    def of_class(self, label: int, rows: NDArray[np.int64]) -> LogWeights:
        """The prior restricted to the rows of a class, not all of them excluded; cached."""
        if label not in self._of_class:
            values = np.full(len(self.values), -np.inf)
            values[rows] = self.values[rows]
            self._of_class[label] = LogWeights.of(values)
        return self._of_class[label]


# The prior over training images: uniform (None), uniform over a class (int), or log weights.
Prior = int | LogWeights | None


def stream_of(prior: Prior) -> int:
    """A seed component that gives each class its own random stream."""
    return prior + 1 if isinstance(prior, int) else 0


def per_query(supports: Supports, queries: int) -> Sequence[AnySupport]:
    """One support per query; a single support is repeated for all queries."""
    if isinstance(supports, Support | TiledSupport | RuleSupport):
        return [supports] * queries
    return supports


def grouped(supports: Sequence[AnySupport]) -> list[tuple[AnySupport, list[int]]]:
    """The distinct support objects, each with the indices of the queries that share it."""
    groups: dict[int, tuple[AnySupport, list[int]]] = {}
    for query, support in enumerate(supports):
        groups.setdefault(id(support), (support, []))[1].append(query)
    return list(groups.values())
