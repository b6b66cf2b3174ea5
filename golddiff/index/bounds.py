"""Distances that no image can be below: of clusters, then of their members, without their pixels.

With orthonormal rows B, Q the projection on what they lack, y = x - mean and likewise y_i,

    ||x - x_i||^2 = ||B y - B y_i||^2 + ||Q y - Q y_i||^2.

The first term is at least what the kept coordinates leave of it
less their error, the second at least the difference of the two lengths (triangle inequality).
A cluster's members have coordinates within its radius and rests between its shortest and longest.

Everything is in float64; what was computed in float32 when the index was built is allowed a
relative error of ``ROUNDING``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.index.files import Index
from golddiff.index.search import checked

ROUNDING = 1e-5

Float = NDArray[np.float64]


class Bounds:
    """Lower bounds of squared distances from one query to images of a store.

    Args:
        index: of the store.
        x: (D,) the query.
    """

    def __init__(self, index: Index, x: NDArray[np.float32]) -> None:
        self._index, self._whole = index, index.views[None]
        fit = self._whole.fit
        mean = fit.mean[0].astype(np.float64)
        y = x.astype(np.float64) - mean
        basis = fit.basis[0].astype(np.float64)
        self._z = basis @ y
        furthest = index.store.radius + float(np.linalg.norm(mean))
        length = float(np.linalg.norm(y))
        self._slack = ROUNDING * (length + furthest)
        self._square_slack = ROUNDING * furthest**2
        rest = length**2 - float(self._z @ self._z)
        self._rest = (
            float(np.sqrt(max(0.0, rest - ROUNDING * length**2))),
            float(np.sqrt(max(0.0, rest + ROUNDING * length**2))),
        )

    def sizes(self) -> NDArray[np.int64]:
        """(C,) images of each cluster."""
        sizes: NDArray[np.int64] = np.diff(self._whole.clusters.starts[0])
        return sizes

    def of_clusters(self) -> Float:
        """(C,) at most the squared distance to any member; infinite where there is none."""
        clusters = self._whole.clusters
        centres = clusters.centres[0].astype(np.float64)
        apart = np.linalg.norm(centres - self._z, axis=1) - clusters.radius[0]
        bounds = self._square(apart - clusters.error[0], clusters.shortest[0], clusters.longest[0])
        bounds[self.sizes() == 0] = np.inf
        return bounds

    def of_members(self, cluster: int) -> tuple[NDArray[np.int64], Float]:
        """The rows (m,) of a cluster's members, and at most the squared distance to each."""
        whole = self._whole
        start, stop = whole.clusters.starts[0, cluster : cluster + 2].tolist()
        rows = checked(whole.rows.run(0, start, stop).astype(np.int64), self._index.store)
        kept = whole.coordinates.run(0, start, stop).astype(np.float64) * whole.fit.scale[0]
        apart = np.linalg.norm(kept - self._z, axis=1) - whole.clusters.error[0, cluster]
        rest = whole.rest.run(0, start, stop).astype(np.float64)
        return rows, self._square(apart, rest, rest)

    def _square(
        self,
        apart: NDArray[np.floating],
        shortest: NDArray[np.floating],
        longest: NDArray[np.floating],
    ) -> Float:
        """From the least distance of coordinates and the range of rests, as kept (rounded up)."""
        low, high = shortest.astype(np.float64), longest.astype(np.float64)
        # The next float16 below is less by one part in 1,024, or by 6e-8 next to 0.
        low = (low * (1 - 2.0**-10) - 1e-7).clip(0) ** 2 - self._square_slack
        low = np.sqrt(low.clip(0))
        high = np.sqrt(high**2 + self._square_slack)
        gap = np.maximum(np.maximum(low - self._rest[1], self._rest[0] - high), 0.0)
        squares: Float = (
            np.maximum(apart.astype(np.float64) - self._slack, 0.0) ** 2
            + np.maximum(gap - self._slack, 0.0) ** 2
        )
        return squares
