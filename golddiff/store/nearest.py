"""The nearest images of a store under a metric, and the metrics of the paper's schedule.

A distance depends on one query and one image only: differences are summed in a fixed order, in
float32. Ties go to the lower row. So the result is the same for every batch and thread count, and
shards find the same images as a single store. Processors round differently, and may order
different images at the same distance differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.lowest import lowest
from golddiff.kernels.rows import squared_distances
from golddiff.kernels.stored import Stored
from golddiff.store.posteriors import as_support
from golddiff.store.proxy import pool
from golddiff.support import AnySupport, Side, Support, concatenated, grouped, tile_count
from golddiff.system.numbers import F32, F64, I64

BYTES_AT_ONCE = 2.5e8  # size limit of one array of distances


class Metric(Protocol):
    """A distance between queries and images, one for each location of an image.

    A metric is plain data, so it can be sent to shards.

    Attributes:
        side: side of the tiles, each with its own distance; None for one distance per image.
        distance_per_nat: the distance that one nat of log weight makes up for in the ranking;
            without this attribute, images are ranked by distance alone.
    """

    @property
    def side(self) -> Side | None:
        """See the class."""

    def distances(self, images: Any, x: F32, rows: I64) -> NDArray[np.floating[Any]]:
        """Distances of the images at ``rows`` (n,) to queries (b, D): (b, n), or (b, T, n)."""


@dataclass(frozen=True)
class Pixels:
    """Squared distance of whole images; by posterior weight with ``distance_per_nat`` 2 sigma^2.

    Like :class:`Pooled`, it compares one vector per image, so any device can compute it.
    """

    distance_per_nat: float = 0.0
    side = None

    def of_queries(self, images: Any, x: F32) -> F32:
        """The queries themselves (b, D)."""
        return x

    def of_images(self, images: Any) -> None:
        """None: the images' own pixels are compared."""

    def distances(self, images: Any, x: F32, rows: I64) -> F64:
        """(b, n); see :class:`Metric`."""
        return squared_distances(images.stored, rows, x)


@dataclass(frozen=True)
class Apart:
    """Squared distance of whole images; infinite within ``radius`` of another image.

    A query is the pixels of both images, (b, 2 D): the one to measure from, then the other.
    """

    radius: float  # a Euclidean distance
    side = None

    def distances(self, images: Any, x: F32, rows: I64) -> F64:
        """(b, n); see :class:`Metric`."""
        here, other = (squared_distances(images.stored, rows, part) for part in np.hsplit(x, 2))
        return np.where(other < self.radius**2, np.inf, here)


@dataclass(frozen=True)
class Pooled:
    """Squared distance of average-pooled images."""

    shape: tuple[int, ...]  # shape of one pooled image
    distance_per_nat: float = 0.0  # as in Pixels, divided by the pixels pooled into one value
    side = None

    def of_queries(self, images: Any, x: F32) -> F32:
        """Pooled queries (b, d')."""
        return pool(x.reshape(-1, *images.shape), self.shape)

    def of_images(self, images: Any) -> F32:
        """Pooled images (n, d')."""
        return images.proxies(self.shape)

    def distances(self, images: Any, x: F32, rows: I64) -> F64:
        """(b, n); see :class:`Metric`."""
        queries = self.of_queries(images, x)
        return squared_distances(Stored(self.of_images(images)), rows, queries)


Vectors = Pixels | Pooled


@dataclass(frozen=True)
class Neighbors:
    """One query's nearest images for each location, with their distances (k,)."""

    tiles: list[Support]
    distances: list[NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class Nearest:
    """A question: the k nearest images of each query (b, D), or all if it has fewer candidates."""

    metric: Metric

    def answer_shard(
        self, images: Any, x: F32, within: Sequence[AnySupport], k: int
    ) -> list[Neighbors]:
        """See :class:`golddiff.store.training_set.Question`."""
        metric, answers = self.metric, dict[int, Neighbors]()
        for support, queries in grouped(within):
            candidates = as_support(support)
            global_rows = Support(candidates.rows + images.first_row, candidates.log_weights)
            locations = tile_count(images.shape, metric.side)
            step = max(1, int(BYTES_AT_ONCE / (8 * locations * max(1, len(candidates)))))
            for i in range(0, len(queries), step):
                batch = queries[i : i + step]
                distances = metric.distances(images, x[batch], candidates.rows)
                distance_per_nat = getattr(metric, "distance_per_nat", 0.0)
                if candidates.log_weights is not None and distance_per_nat:
                    distances = distances - distance_per_nat * candidates.log_weights
                for query, of_query in zip(batch, distances, strict=True):
                    tiles = np.atleast_2d(of_query)
                    positions = [lowest(tile, k) for tile in tiles]
                    answers[query] = Neighbors(
                        [global_rows.at(nearest) for nearest in positions],
                        [tile[nearest] for tile, nearest in zip(tiles, positions, strict=True)],
                    )
        return [answers[query] for query in range(len(x))]

    def merge(self, answers: Sequence[list[Neighbors]], k: int) -> list[Neighbors]:
        """See :class:`golddiff.store.training_set.Question`."""
        return [_merge(parts, k) for parts in zip(*answers, strict=True)]


def _merge(parts: Sequence[Neighbors], k: int) -> Neighbors:
    """The k nearest images of each location over all shards, which are given in row order."""
    merged = Neighbors([], [])
    for tile in range(len(parts[0].tiles)):
        distances = np.concatenate([part.distances[tile] for part in parts])
        positions = lowest(distances, k)
        merged.tiles.append(concatenated([part.tiles[tile] for part in parts]).at(positions))
        merged.distances.append(distances[positions])
    return merged
