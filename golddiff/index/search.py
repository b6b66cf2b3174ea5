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
from golddiff.index.views import location_of
from golddiff.kernels.lowest import lowest
from golddiff.kernels.mask_tiles import OfChannel, Side, pixels, tile_count
from golddiff.kernels.members import weighed_distances
from golddiff.parallel import in_order
from golddiff.store import ImageStore

HELD = 0.7  # of what a tile's masks hold: a window that holds less is passed over
COMPARED = 0.995  # of the variance: directions in which images differ least are left out


@dataclass(frozen=True)
class Near:
    """What one location sees of the images, for one query.

    Attributes:
        rows: (m,) int64 images of the clusters that were opened, in the index's order.
        distances: (m,) float32, less a constant.
        closed: (c,) clusters that were not opened.
        far: (c,) float32 their members' mean distances, less the same constant.
    """

    rows: NDArray[np.int64]
    distances: NDArray[np.float32]
    closed: NDArray[np.int64]
    far: NDArray[np.float32]


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
        weighed = basis * shares
        gram = weighed @ basis.T
        self._turn, self._to_goal = _directions(gram, _variance(locations, t), weighed)
        self._scaled_turn = (fit.scale[t][:, None] * self._turn).astype(np.float32)
        r, w = basis.shape
        self._rest = float(max(0.0, shares.sum() - np.trace(gram)) / max(1, w - r))
        clusters = locations.clusters
        self._spread = (clusters.spread[t] @ np.diag(gram) + self._rest * clusters.rest[t]).astype(
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
        return len(self._turn)

    @property
    def numbers(self) -> int:
        """Multiplications for an image that is compared."""
        return self._turn.size

    def look(self, x: NDArray[np.float32], members: int) -> Near:
        """Open the clusters next to a query (D,), as many as hold ``members`` images."""
        locations, t = self._locations, self._t
        goal = self._to_goal @ (x[self._inside] - locations.fit.mean[t])
        starts = locations.clusters.starts[t]
        centres = weighed_distances(locations.clusters.centres[t], self._turn, goal)
        ranked = np.argsort(centres, kind="stable")
        sizes = self.sizes
        enough = int(np.searchsorted(np.cumsum(sizes[ranked]), members)) + 1
        opened = np.sort(ranked[:enough])
        opened = opened[sizes[opened] > 0]
        runs = _joined(starts[opened], starts[opened + 1])
        rows = locations.rows.runs(t, runs).astype(np.int64)
        coordinates = locations.coordinates.runs(t, runs)
        rest = locations.rest.runs(t, runs).astype(np.float32)
        distances = weighed_distances(coordinates, self._scaled_turn, goal)
        distances += np.float32(self._rest) * rest**2
        closed = np.setdiff1d(ranked[enough:], np.flatnonzero(sizes == 0), assume_unique=True)
        return Near(rows, distances, closed, centres[closed] + self._spread[closed])

    def run(self, cluster: int, start: int, count: int) -> NDArray[np.int64]:
        """``count`` images of a cluster from its place ``start`` on, around its end."""
        first, stop = self._locations.clusters.starts[self._t, cluster : cluster + 2]
        at = first + start % (stop - first)
        over = max(0, at + count - stop)
        limits = [(int(at), int(at + count - over)), (int(first), int(first + over))]
        rows: NDArray[np.int64] = self._locations.rows.runs(self._t, limits).astype(np.int64)
        return rows


def _joined(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Runs (start, stop) in ascending order, neighbours as one."""
    joined: list[tuple[int, int]] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


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


def _directions(
    gram: NDArray[np.float64], variance: NDArray[np.float64], weighed: NDArray[np.float64]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A^T (r, s) with A^T A = gram but for directions in which images hardly differ, and a of y.

    With V the variance and V^1/2 gram V^1/2 = U diag(L) U^T, A^T = V^-1/2 U L^1/2: the s largest L
    are the variances of A z.
    """
    values, vectors = np.linalg.eigh(variance)
    root = np.sqrt(np.maximum(values, 1e-9 * max(float(values[-1]), 1e-30)))
    half, inverse = (vectors * root) @ vectors.T, (vectors / root) @ vectors.T
    spread, axes = np.linalg.eigh(half @ gram @ half)
    spread, axes = np.maximum(spread[::-1], 0.0), axes[:, ::-1]
    total = float(spread.sum())
    s = 1 + int(np.searchsorted(np.cumsum(spread), COMPARED * total)) if total > 0 else 1
    s = min(s, len(spread))
    long = np.sqrt(np.maximum(spread[:s], 1e-30))
    turn = inverse @ axes[:, :s] * long
    # a with A^T a = B R y over the directions kept: a = L^-1/2 U^T V^1/2 B R y.
    to_goal = ((half @ axes[:, :s]) / long).T @ weighed
    return turn.astype(np.float32), to_goal.astype(np.float32)


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
