"""PCA's sums where each tile of outputs has a support of its own.

Tiles choose many images alike: of 262,144 that the 256 tiles of a query chose at noise level 0.34
over 1.28 million images, 72,867 are different ones. A row that has to be read from the store's file
takes longer to read than a tile's share of it takes to weigh, so it is read once for all tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.mask_tree import MaskTree
from golddiff.kernels.pca_cpu import Sums, add_images
from golddiff.store.images import ImageStore
from golddiff.support import TiledSupport
from golddiff.system.parallel import for_each
from golddiff.system.residency import in_place, resident_rows


def add_tiles(
    support: TiledSupport,
    store: ImageStore,
    x: NDArray[np.float32],
    sigma: float,
    trees: Sequence[MaskTree],
    memory: float,
    sums: Sums,
) -> None:
    """Add each tile's images to the sums of its outputs, tiles side by side.

    ``trees`` are the tiles' masks; ``memory`` is what rows may take that have to be read.
    """
    weights = [tile.log_importance().astype(np.float32) for tile in support.tiles]

    def add(t: int, values: NDArray[Any], places: NDArray[np.int64], part: slice) -> None:
        add_images(
            values, places, weights[t][part], x, sigma, trees[t], store.scale, store.offset, sums
        )

    def add_all(t: int) -> None:
        add(t, store.flat, support.tiles[t].rows, slice(None))

    if in_place(store.flat):
        for_each(add_all, range(len(trees)))
        return
    rows = support.rows
    size = max(1, int(memory // store.flat.strides[0]))
    for start in range(0, len(rows), size):
        piece = rows[start : start + size]
        with resident_rows(store.flat, piece) as (values, places):
            # Less than all of a mapped file: its pages are not asked for once more.
            there = values[: int(places[-1]) + 1]
            some = partial(_add_some, support, piece, there, places, add)
            for_each(some, range(len(trees)))


def _add_some(
    support: TiledSupport,
    piece: NDArray[np.int64],
    values: NDArray[Any],
    places: NDArray[np.int64],
    add: Callable[[int, NDArray[Any], NDArray[np.int64], slice], None],
    t: int,
) -> None:
    """Add those of a tile's rows that are in a piece (k,), at places (k,) of values."""
    rows = support.tiles[t].rows
    part = slice(*np.searchsorted(rows, [piece[0], piece[-1] + 1]))
    add(t, values, places[np.searchsorted(piece, rows[part])], part)
