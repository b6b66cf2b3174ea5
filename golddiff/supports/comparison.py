"""How the images of one noise level are compared."""

from __future__ import annotations

from typing import Any

from golddiff.store.nearest import Metric
from golddiff.supports.index.distances import KeptBlocks, TileBlocks
from golddiff.supports.index.image_index import Index
from golddiff.supports.rule import WIDE, side_of


class Comparison:
    """How the images of a noise level are compared: cheap distances of the store's or the index's.

    Attributes:
        side: of the tiles that see images each in its own way; None: the whole image is one.
        narrow: whether masks are so narrow that tiles may choose their nearest images.
        metric: distances as each tile sees them.
    """

    def __init__(self, estimator: Any, sigma: float, index: Index | None) -> None:
        width = float(estimator.relevance(sigma).mean())
        self.side = side_of(estimator.tile_sides, width)
        self.narrow = self.side is not None and width < WIDE
        relevance = estimator.relevance(sigma, self.side)
        self.metric: Metric = (
            TileBlocks.of(estimator.store.shape, relevance, self.side)
            if index is None
            else KeptBlocks.of(index, relevance, self.side)
        )
