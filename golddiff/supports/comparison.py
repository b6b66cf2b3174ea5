"""How the images of one noise level are compared."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.store.nearest import Metric
from golddiff.support import Side
from golddiff.supports.index.distances import KeptBlocks, TileBlocks
from golddiff.supports.index.image_index import Index
from golddiff.supports.rule import side_of


class Comparison:
    """How the images of a noise level are compared: cheap distances of the store's or the index's.

    Attributes:
        side: of the tiles that may choose their nearest images; None: there are none.
        whole: distances as all outputs together see them.
    """

    def __init__(self, estimator: Any, sigma: float, index: Index | None) -> None:
        self._estimator, self._sigma, self._index = estimator, sigma, index
        relevance = estimator.relevance(sigma)
        self.side = side_of(estimator.tile_sides, float(relevance.mean()))
        self.whole = self._metric(relevance, None)
        self._tiles: Metric | None = None

    def tiles(self, side: Side) -> Metric:
        """Distances as each tile sees them; made once."""
        if self._tiles is None:
            self._tiles = self._metric(self._estimator.relevance(self._sigma, side), side)
        return self._tiles

    def _metric(self, relevance: NDArray[np.float32], side: Side | None) -> Metric:
        if self._index is None:
            return TileBlocks.of(self._estimator.store.shape, relevance, side)
        return KeptBlocks.of(self._index, relevance, side)
