"""The pieces of a tiled support, each for one thread.

Where a store's rows are in place, a piece is a tile. Where rows have to be read from its file, a
piece is a run of rows and what all tiles weigh of them: tiles choose many images alike (of 262,144
that the 256 tiles of a query chose at noise level 0.34 over 1.28 million, 72,867 are different
ones), and a row takes longer to read than a tile's share of it takes to weigh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.mask_tree import MaskTree
from golddiff.kernels.pca_cpu import Sums, add_images
from golddiff.residency import at_hand, in_place
from golddiff.store import ImageStore
from golddiff.support import Support, TiledSupport


@dataclass(frozen=True)
class Piece:
    """Images that some tiles weigh.

    Attributes:
        tiles: (tile, its images).
        rows: (k,) all of them, ascending, to be read once; None: they are in place.
    """

    tiles: Sequence[tuple[int, Support]]
    rows: NDArray[np.int64] | None = None


def pieces_of(support: TiledSupport, store: ImageStore, memory: float) -> list[Piece]:
    """The pieces of a support; which they are does not depend on the number of threads.

    Args:
        support: of the tiles.
        store: that holds its rows.
        memory: bytes that a piece's rows may take.
    """
    if in_place(store.flat):
        return [Piece([tile]) for tile in enumerate(support.tiles)]
    rows = support.rows
    size = max(1, int(memory // store.flat.strides[0]))
    firsts = rows[::size]
    limits = [np.append(np.searchsorted(t.rows, firsts), len(t.rows)) for t in support.tiles]
    return [
        Piece(
            [
                (t, _part(tile, start, stop))
                for t, tile in enumerate(support.tiles)
                for start, stop in [limits[t][number : number + 2]]
                if stop > start
            ],
            rows[number * size : (number + 1) * size],
        )
        for number in range(len(firsts))
    ]


def add_piece(
    piece: Piece,
    store: ImageStore,
    x: NDArray[np.float32],
    sigma: float,
    trees: Sequence[MaskTree],
    sums: Sums,
) -> None:
    """Add a piece's images to the sums of its tiles' outputs, for queries (b, D)."""
    if piece.rows is None:
        for t, support in piece.tiles:
            _add(store, store.flat, support.rows, support, x, sigma, trees[t], sums)
        return
    with at_hand(store.flat, piece.rows) as (values, places):
        # Less than all of a mapped file: its pages are not asked for once more.
        values = values[: int(places[-1]) + 1]
        for t, support in piece.tiles:
            theirs = places[np.searchsorted(piece.rows, support.rows)]
            _add(store, values, theirs, support, x, sigma, trees[t], sums)


def _part(support: Support, start: int, stop: int) -> Support:
    weights = support.log_weights
    return Support(support.rows[start:stop], None if weights is None else weights[start:stop])


def _add(
    store: ImageStore,
    values: NDArray[np.float32],
    places: NDArray[np.int64],
    support: Support,
    x: NDArray[np.float32],
    sigma: float,
    tree: MaskTree,
    sums: Sums,
) -> None:
    weights = support.log_importance().astype(np.float32)
    add_images(values, places, weights, x, sigma, tree, store.scale, store.offset, sums)
