"""Which images matter to a query, location by location, from the index alone.

A location's mean logit over its outputs is -sum_n R_n (x_n - x_in)^2 / (2 sigma^2), with R_n the
share of their masks that hold input n. Of an image the index keeps z = B (x_i - mean) and the
length of the rest; with y = x - mean

    sum_n R_n (y - B^T z)_n^2 = |A z - a|^2 + what all images share,
    A^T A = B R B^T,  A^T a = B R y,   R = diag(R_n),

and what the rest adds is taken as its squared length times the mean of R. So ranking takes a small
matrix for each location and noise level, and nothing that has to be made for each image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.errors import StoreError
from golddiff.index.files import Index, Locations
from golddiff.index.metric import metric_of
from golddiff.index.views import location_of
from golddiff.kernels.lowest import lowest
from golddiff.kernels.mask_tiles import OfChannel, Side, pixels, tile_count
from golddiff.store.images import ImageStore
from golddiff.system.parallel import in_order

HELD = 0.7  # of what a tile's masks hold: a window that holds less is passed over


@dataclass(frozen=True)
class Near:
    """What one location sees of the images, for one query.

    Attributes:
        rows: (m,) int64 images of the clusters that were opened, in the index's order.
        distances: (m,) float32, less a constant.
        closed: (c,) clusters that were not opened.
        far: (c,) float32 their members' mean distances, less the same constant.
        goal: the query, as :class:`golddiff.index.metric.Metric` compares it.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.float32]
    closed: NDArray[np.int64]
    far: NDArray[np.float32]
    goal: NDArray[np.float32]


class Sight:
    """How one location compares images at a noise level.

    Args:
        locations: the view.
        t: which of its locations.
        relevance: (D,) shares R in [0, 1].
    """

    def __init__(self, locations: Locations, t: int, relevance: NDArray[np.float32]) -> None:
        fit = locations.fit
        self._locations, self._t = locations, t
        self._inside = fit.columns[t]
        shares = relevance[self._inside].astype(np.float64)
        basis = fit.basis[t].astype(np.float64)
        self._metric = metric_of(basis, shares, fit.scale[t], _variance(locations, t))
        lengths = basis**2 @ shares
        r, w = basis.shape
        self._rest = float(max(0.0, shares.sum() - lengths.sum()) / max(1, w - r))
        clusters = locations.clusters
        self._spread = (clusters.spread[t] @ lengths + self._rest * clusters.rest[t]).astype(
            np.float32
        )

    @property
    def sizes(self) -> NDArray[np.int64]:
        """(C,) images of each cluster."""
        sizes: NDArray[np.int64] = np.diff(self._locations.clusters.starts[self._t])
        return sizes

    @property
    def clusters(self) -> int:
        """How many clusters there are."""
        return len(self._spread)

    @property
    def coordinates(self) -> int:
        """How many coordinates are kept of an image."""
        return int(self._locations.fit.basis.shape[1])

    @property
    def bytes(self) -> int:
        """Read of an image that is compared: its coordinates, which it is, its rest."""
        return self.coordinates + 6

    @property
    def numbers(self) -> int:
        """Multiplications for an image that is compared."""
        return self._metric.numbers

    def look(self, x: NDArray[np.float32], members: int) -> Near:
        """Open the clusters next to a query (D,), as many as hold ``members`` images."""
        locations, t = self._locations, self._t
        goal = self._metric.goal(x[self._inside] - locations.fit.mean[t])
        starts, sizes = locations.clusters.starts[t], self.sizes
        centres = self._metric.centres(locations.clusters.centres[t], goal)
        ranked = np.argsort(centres)
        enough = int(np.searchsorted(np.cumsum(sizes[ranked]), members)) + 1
        is_open = np.zeros(len(sizes), np.bool_)
        is_open[ranked[:enough]] = True
        opened = np.flatnonzero(is_open & (sizes > 0))
        rows, distances = self.members(goal, _joined(starts[opened], starts[opened + 1]))
        closed = np.flatnonzero(~is_open & (sizes > 0))
        return Near(rows, distances, closed, centres[closed] + self._spread[closed], goal)

    def members(
        self, goal: NDArray[np.float32], limits: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Images of some runs (start, stop) of the index's order, (k, 2), and their distances."""
        locations, t = self._locations, self._t
        distances = self._metric.kept(locations.coordinates.runs(t, limits), goal)
        rest = locations.rest.runs(t, limits).astype(np.float32)
        distances += np.float32(self._rest) * rest**2
        return locations.rows.runs(t, limits).astype(np.int64), distances

    def runs(
        self, clusters: NDArray[np.int64], begin: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Limits (k, 2) of ``counts`` images of each cluster, from its place ``begin`` on.

        Around its end: the images of a cluster are in one run or two.
        """
        starts = self._locations.clusters.starts[self._t]
        first, stop = starts[clusters], starts[clusters + 1]
        at = first + begin
        over = np.maximum(0, at + counts - stop)
        limits = np.stack([at, at + counts - over, first, first + over], 1).reshape(-1, 2)
        there: NDArray[np.int64] = limits[limits[:, 1] > limits[:, 0]]
        return there


def _joined(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> NDArray[np.int64]:
    """Runs (start, stop) in ascending order, neighbours as one, (k, 2)."""
    apart = np.flatnonzero(starts[1:] != stops[:-1])
    return np.stack([starts[np.append(0, apart + 1)], stops[np.append(apart, -1)]], 1)


def sight_of(index: Index, side: Side | None, t: int, relevance: NDArray[np.float32]) -> Sight:
    """How a tile of outputs compares images: through the smallest window that holds its masks.

    Args:
        index: of the store.
        side: of the tiles; None: the whole image.
        t: which tile.
        relevance: (D,) shares R in [0, 1].
    """
    total = float(relevance.sum())
    long = 0 if side is None else pixels(side)
    if isinstance(side, OfChannel):  # windows hold all channels
        t %= tile_count(index.store.shape, long)
    wide = [] if side is None else sorted(v for v in index.views if v is not None and v >= long)
    for view in wide:
        locations = index.views[view]
        there = location_of(index.store.shape, long, t, view)
        if relevance[locations.fit.columns[there]].sum() >= HELD * total:
            return Sight(locations, there, relevance)
    return Sight(index.views[None], 0, relevance)


def _variance(locations: Locations, t: int) -> NDArray[np.float64]:
    """Covariance (r, r) of a location's coordinates over all images, from its clusters."""
    clusters = locations.clusters
    shares = np.diff(clusters.starts[t]) / max(1, clusters.starts[t, -1])
    centres = clusters.centres[t].astype(np.float64)
    away = centres - shares @ centres
    made: NDArray[np.float64] = (away.T * shares) @ away + np.diag(shares @ clusters.spread[t])
    return made


def checked(rows: NDArray[np.int64], store: ImageStore) -> NDArray[np.int64]:
    """The rows, which must be of the store: compiled code does not look.

    Raises:
        StoreError: they are not; the index was altered.
    """
    if len(rows) and rows.max() >= store.n:
        raise StoreError(f"index: that of {store.path} is damaged; build the index again")
    return rows


def nearest(
    index: Index, x: NDArray[np.float32], k: int, members: int | None = None
) -> list[NDArray[np.int64]]:
    """About the k nearest images to each query (b, D), by the whole image's coordinates.

    Args:
        index: of the store.
        x: queries.
        k: images.
        members: images whose coordinates are compared; default 16 k, at least 8,192.

    Returns:
        For each query rows, ascending.
    """
    store = index.store
    sight = Sight(index.views[None], 0, np.ones(store.d, np.float32))
    compared = max(16 * k, 8192) if members is None else members

    def one(query: NDArray[np.float32]) -> NDArray[np.int64]:
        near = sight.look(query, compared)
        return np.sort(checked(near.rows[lowest(near.distances, k)], store))

    return list(in_order(one, _queries(x)))


def _queries(x: NDArray[np.float32]) -> Sequence[NDArray[np.float32]]:
    return list(x)
