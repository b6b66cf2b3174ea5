"""The nearest images of a store under a metric, and the metrics of the paper's schedule.

A distance is made of one query and one image alone (true differences, summed in a fixed order), and
of images at the same distance the first in row order count as nearer. So the answer depends on
neither batch, thread nor processor, and parts of a training set find together what it would find
as one.
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
from golddiff.store.posteriors import whole
from golddiff.store.proxy import pool
from golddiff.support import AnySupport, Side, Support, grouped, joined, tile_count
from golddiff.system.numbers import F32, F64, I64

BYTES_AT_ONCE = 2.5e8  # of distances


class Metric(Protocol):
    """A distance of images to queries, of each location of an image.

    Plain data: it goes to wherever the images are.

    Attributes:
        side: of the tiles that have a distance each; None: one distance an image.
        nat: distance that images of one more nat of log weight may be further away; a metric
            without it ranks by distance alone.
    """

    @property
    def side(self) -> Side | None:
        """See the class."""
        ...

    def distances(self, images: Any, x: F32, rows: I64) -> NDArray[np.floating[Any]]:
        """Of some images (n,) to queries (b, D): (b, n), or (b, T, n) of T tiles."""
        ...


@dataclass(frozen=True)
class Pixels:
    """Squared distance of whole images; with ``nat`` 2 sigma^2 the order of posterior weights.

    Like :class:`Pooled` one vector an image (``of_images``, None: its pixels): any device can
    compare them.
    """

    nat: float = 0.0
    side = None

    def of_queries(self, images: Any, x: F32) -> F32:
        """Their vectors (b, d'): the queries themselves."""
        return x

    def of_images(self, images: Any) -> None:
        """The pixels themselves."""

    def distances(self, images: Any, x: F32, rows: I64) -> F64:
        """(b, n); see :class:`Metric`."""
        return squared_distances(images.stored, rows, x)


@dataclass(frozen=True)
class Pooled:
    """Squared distance of average-pooled images."""

    shape: tuple[int, ...]  # of one, pooled
    nat: float = 0.0  # pooled distances are less than all pixels' by the pooled area
    side = None

    def of_queries(self, images: Any, x: F32) -> F32:
        """Pooled queries (b, d')."""
        return pool(x.reshape(-1, *images.shape), self.shape)

    def of_images(self, images: Any) -> F32:
        """Pooled images (n, d')."""
        pooled: F32 = images.proxies(self.shape)
        return pooled

    def distances(self, images: Any, x: F32, rows: I64) -> F64:
        """(b, n); see :class:`Metric`."""
        queries = self.of_queries(images, x)
        return squared_distances(Stored(self.of_images(images)), rows, queries)


Vectors = Pixels | Pooled


@dataclass(frozen=True)
class Found:
    """Of one query and each location its nearest images, and their distances (k,)."""

    tiles: list[Support]
    distances: list[NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class Nearest:
    """A question: of each query (b, D) the k nearest images, or fewer where it has no more."""

    metric: Metric

    def of_part(self, images: Any, x: F32, within: Sequence[AnySupport], k: int) -> list[Found]:
        """See :class:`golddiff.store.training_set.Question`."""
        metric, answers = self.metric, dict[int, Found]()
        for support, queries in grouped(within):
            among = whole(support)
            named = Support(among.rows + images.first_row, among.log_weights)
            locations = 1 if metric.side is None else tile_count(images.shape, metric.side)
            step = max(1, int(BYTES_AT_ONCE / (8 * locations * max(1, len(among)))))
            for i in range(0, len(queries), step):
                some = queries[i : i + step]
                distances = metric.distances(images, x[some], among.rows)
                nat = getattr(metric, "nat", 0.0)
                if among.log_weights is not None and nat:
                    distances = distances - nat * among.log_weights
                for query, found in zip(some, distances, strict=True):
                    tiles = np.atleast_2d(found)
                    places = [lowest(tile, k) for tile in tiles]
                    answers[query] = Found(
                        [named.at(place) for place in places],
                        [tile[place] for tile, place in zip(tiles, places, strict=True)],
                    )
        return [answers[query] for query in range(len(x))]

    def merged(self, answers: Sequence[list[Found]], k: int) -> list[Found]:
        """See :class:`golddiff.store.training_set.Question`."""
        return [_nearest_of(parts, k) for parts in zip(*answers, strict=True)]


def _nearest_of(parts: Sequence[Found], k: int) -> Found:
    """Of each location the k nearest of all parts, which come in the order of their rows."""
    made = Found([], [])
    for tile in range(len(parts[0].tiles)):
        distances = np.concatenate([part.distances[tile] for part in parts])
        places = lowest(distances, k)
        made.tiles.append(joined([part.tiles[tile] for part in parts]).at(places))
        made.distances.append(distances[places])
    return made
