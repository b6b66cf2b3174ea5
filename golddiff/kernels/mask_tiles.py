"""Cut a mask tree into tiles, so that each tile of outputs can have its own support.

Tiles of a single channel (:data:`golddiff.support.Side`) share more of their masks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.gather import positions_in, runs
from golddiff.kernels.mask_tree import LEVELS, MaskTree, sides
from golddiff.support import Side, pixels, tile_of_each
from golddiff.system.numbers import F32, I64


def tile_trees(tree: MaskTree, shape: tuple[int, ...], side: Side) -> list[MaskTree]:
    """The trees of the square tiles of one side, row by row.

    Each output is in exactly one tile and keeps its mask. A tile reads only the inputs of its own
    masks. The side is a power of two, at least 2; tiles at a ragged edge are smaller.
    """
    leaf = tree.output >= 0
    # A node's first output (its corner) is the first leaf at or after it in preorder.
    following = np.where(leaf, np.arange(len(leaf)), len(leaf))
    following = np.minimum.accumulate(following[::-1])[::-1]
    tile = tile_of_each(shape, side)[tree.output[following]]
    # The inputs of nodes wider than a tile are added to each of their tile-sized descendants.
    top = next(level for level in range(LEVELS) if max(sides(level)) <= pixels(side))
    wider = tree.level < top
    above = _nodes_above(tree.level, top)
    return [
        _tile_tree(tree, np.flatnonzero((tile == t) & ~wider), above, top, int(np.prod(shape)))
        for t in range(int(tile.max()) + 1)
    ]


def mean_mask(tree: MaskTree, d: int) -> F32:
    """The masks averaged over a tree's outputs: (D,) fractions in [0, 1]."""
    leaves = np.repeat(_leaves_below(tree), tree.stop - tree.start)
    entries = np.concatenate(
        [np.arange(a, b) for a, b in zip(tree.start, tree.stop, strict=True)] or [np.arange(0)]
    )
    counts = np.bincount(tree.columns[tree.inputs[entries]], leaves, minlength=d)
    shares: F32 = (counts / np.count_nonzero(tree.output >= 0)).astype(np.float32)
    return shares


def _leaves_below(tree: MaskTree) -> I64:
    """The number of leaves below each node, whose masks hold the node's inputs, (nodes,)."""
    # In preorder they precede the next node of the same or a higher level.
    leaves = np.concatenate([[0], np.cumsum(tree.output >= 0)])
    end = np.full(len(tree.level), len(tree.level))
    for level in range(LEVELS):
        stops = np.append(np.flatnonzero(tree.level <= level), len(tree.level))
        nodes = np.flatnonzero(tree.level == level)
        end[nodes] = stops[np.searchsorted(stops, nodes, side="right")]
    below: I64 = leaves[end] - leaves[:-1]
    return below


def _nodes_above(level: I64, top: int) -> I64:
    """The last preceding node of each level above ``top``, for every node: (top, nodes)."""
    position = np.arange(len(level))
    above = np.empty((top, len(level)), np.int64)
    for upper in range(top):
        above[upper] = np.maximum.accumulate(np.where(level == upper, position, 0))
    return above


def _tile_tree(tree: MaskTree, nodes: I64, above: I64, top: int, d: int) -> MaskTree:
    parts: list[NDArray[np.int32]] = []
    lengths = []
    for node in nodes:
        from_top = [node] if tree.level[node] != top else [*above[:, node], node]
        entries = [tree.inputs[tree.start[n] : tree.stop[n]] for n in from_top]
        parts += entries
        lengths.append(sum(map(len, entries)))
    ends = np.cumsum(lengths, dtype=np.int64)
    outputs = tree.output[nodes]
    inputs, leaf = tree.columns[np.concatenate(parts)], outputs >= 0
    columns = runs(np.union1d(inputs, outputs[leaf]), d)
    own = np.full(len(nodes), -1)
    own[leaf] = positions_in(columns, outputs[leaf])
    return MaskTree(
        tree.level[nodes],
        ends - np.array(lengths),
        ends,
        outputs,
        own,
        positions_in(columns, inputs).astype(np.int32),
        columns,
    )
