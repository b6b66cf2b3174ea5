"""Every training image's mean logit over a tile, approximately, for one product of small matrices.

A tile's mean logit is -sum_n R_n (x_n - x_in)^2 / (2 sigma^2), with R_n the share of the tile's
masks that hold input n. With y = x - mean and x_i - mean = B^T z_i + rest_i that sum is

    sum_n R_n y_n^2  -  2 (B (R * y)) . z_i  +  sum_n R_n (x_in - mean_n)^2  -  2 (R * y) . rest_i:

the same for all images; a product with r coordinates; a term that no query changes; and what is
left out, a sum of random sign over the few per cent of variance that the coordinates lack.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.adaptive.comparing import ByCoordinates
from golddiff.adaptive.coordinates import Coordinates
from golddiff.kernels.aligned import zeros
from golddiff.kernels.products import less_twice_the_products, padded
from golddiff.store.images import ImageStore

IMAGES_AT_ONCE = 2048


class Ranking:
    """Approximate distances of some images to queries, as each tile sees them.

    Args:
        store: the training set.
        coordinates: of its images.
        relevance: (T, D) shares R in [0, 1].
        rows: (n,) the images to rank.
    """

    def __init__(
        self,
        store: ImageStore,
        coordinates: Coordinates,
        relevance: NDArray[np.float32],
        rows: NDArray[np.int64],
    ) -> None:
        self.rows = rows
        self.comparing = ByCoordinates(len(coordinates.basis))
        self._coordinates = coordinates
        self._relevance = relevance
        n = padded(len(rows))
        self._z = coordinates.z  # shared by all rankings of the whole store
        if len(rows) < store.n:
            self._z = zeros((len(coordinates.z), n))
            self._z[:, : len(rows)] = coordinates.z[:, rows]
        self._own = zeros((len(relevance), n))
        shares = torch.from_numpy(relevance)
        for start in range(0, len(rows), IMAGES_AT_ONCE):
            part = slice(start, min(start + IMAGES_AT_ONCE, len(rows)))
            squares = torch.from_numpy(store.values(rows[part]) - coordinates.mean).square_()
            self._own[:, part] = (shares @ squares.T).numpy()

    @property
    def tiles(self) -> int:
        """How many tiles rank the images."""
        return len(self._own)

    def distances(
        self, x: NDArray[np.float32], tiles: Sequence[int] | None = None
    ) -> NDArray[np.float32]:
        """Distances (Q, T, n) of queries (Q, D), less a constant for each tile; of some tiles."""
        seen, own = self._relevance, self._own
        if tiles is not None:
            seen, own = seen[list(tiles)], own[list(tiles)]
        coordinates = self._coordinates
        # Query by query: a product of all at once rounds differently in another batch.
        vectors = [coordinates.of(seen * (query - coordinates.mean)) for query in x]
        made = less_twice_the_products(own, self._z, np.stack(vectors))
        return made[:, :, : len(self.rows)]
