"""PCA's sums where each tile of outputs has a support of its own.

Tiles choose many images alike: of 262,144 that the 256 tiles of a query chose at noise level 0.34
over 1.28 million images, 72,867 are different ones. A row that has to be read from the store's file
takes longer to read than a tile's share of it takes to weigh, so it is read once for all tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from golddiff.kernels.mask_tree import MaskTree
from golddiff.kernels.pca_cpu import Sums, add_resident
from golddiff.kernels.stored import Stored
from golddiff.store.images import ImageStore
from golddiff.support import Support, TiledSupport
from golddiff.system.numbers import F32, I64
from golddiff.system.parallel import for_each
from golddiff.system.residency import in_place


def add_tiles(
    support: TiledSupport,
    store: ImageStore,
    x: F32,
    sigma: float,
    trees: Sequence[MaskTree],
    memory: float,
    sums: Sums,
) -> None:
    """Add each tile's images to the sums of its outputs, tiles side by side.

    ``trees`` are the tiles' masks; ``memory`` is what rows may take that have to be read.
    """
    rows = support.rows
    size = max(1, len(rows) if in_place(store.flat) else int(memory // store.flat.strides[0]))
    for start in range(0, len(rows), size):
        piece = rows[start : start + size]
        with store.stored.resident(piece) as (here, places):
            moved = [_moved(tile, piece, places) for tile in support.tiles]

            def add(t: int, here: Stored = here, moved: Sequence[Support] = moved) -> None:
                add_resident(here, moved[t], x, sigma, trees[t], sums)

            for_each(add, range(len(trees)))


def _moved(tile: Support, piece: I64, places: I64) -> Support:
    """Those of a tile's images whose rows are in a piece (k,), and now lie at places (k,)."""
    first, last = np.searchsorted(tile.rows, [piece[0], piece[-1] + 1])
    some = tile.at(np.arange(first, last))
    return Support(places[np.searchsorted(piece, some.rows)], some.log_weights)
