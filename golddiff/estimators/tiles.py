"""PCA's sums for supports with one image set per tile of outputs.

Tiles choose many images in common: the 256 tiles of a query at noise level 0.34 over 1.28 million
images chose 262,144, of which 72,867 were distinct. Reading a row from the store's file takes
longer than weighing one tile of it, so each row is read once for all tiles.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from golddiff.kernels.mask_tree import MaskTree
from golddiff.kernels.pca_cpu import add_resident
from golddiff.kernels.stored import Stored
from golddiff.posterior import Posterior
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
    sums: Posterior,
) -> None:
    """Add each tile's images to the sums of its outputs, with tiles in parallel.

    ``trees`` are the tiles' masks; ``memory`` limits the bytes of rows read from the file at once.
    """
    rows = support.rows
    size = max(1, len(rows) if in_place(store.flat) else int(memory // store.flat.strides[0]))
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        with store.stored.resident(chunk) as (loaded, local_rows):
            parts = [_loaded_subset(tile, chunk, local_rows) for tile in support.tiles]

            def add(t: int, loaded: Stored = loaded, parts: Sequence[Support] = parts) -> None:
                add_resident(loaded, parts[t], x, sigma, trees[t], sums)

            for_each(add, range(len(trees)))


def _loaded_subset(tile: Support, chunk: I64, local_rows: I64) -> Support:
    """The tile's images among a chunk of rows (k,), as rows of the loaded array."""
    first, last = np.searchsorted(tile.rows, [chunk[0], chunk[-1] + 1])
    subset = tile.at(slice(first, last))
    return Support(local_rows[np.searchsorted(chunk, subset.rows)], subset.log_weights)
