"""Share the sums of overlapping masks in a tree over tiles of outputs.

Neighbouring outputs have almost the same mask. A node is a tile of outputs of one channel (8x8,
halved to 4x8, 4x4, ... 1x1), and its set holds the inputs that *all* its outputs use. A node's
masked sum is its parent's sum plus the inputs that its set adds; a leaf's sum covers its whole
mask. Without subtraction, no digits cancel. On CIFAR-10 masks this takes 2 to 25 times fewer
additions than separate masked sums, and 15 to 180 times fewer than a dense product.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from golddiff.kernels.gather import positions_in, runs
from golddiff.support import Side, as_image, tile_of_each
from golddiff.system.numbers import F32, I64

SIDE = 8  # side of the largest tiles
ROWS, COLUMNS = 1, 2  # axes of (C, rows, columns)
LEVELS = 7  # rows and columns are halved in turn


def sides(level: int) -> tuple[int, int]:
    """Rows and columns of a level's tiles: (8, 8), (4, 8), (4, 4) ... (1, 1)."""
    return SIDE >> (level + 1) // 2, SIDE >> level // 2


class MaskTree(NamedTuple):
    """The tree in preorder: a parent before its children, a child after its parent.

    Attributes:
        level: (nodes,) int64, 0 for 8x8 tiles to 6 for single outputs.
        start, stop: (nodes,) int64 range of the node's entries in ``inputs``.
        output: (nodes,) int64 output value of a leaf, -1 for a tile.
        own: (nodes,) int64 position in ``columns`` of a leaf's own input value, -1 for a tile.
        inputs: (entries,) int32 inputs that a node adds to its parent's sum, as positions in
            ``columns``.
        columns: (columns,) int64 input values that the tree reads: all, or those of a tile.
    """

    level: I64
    start: I64
    stop: I64
    output: I64
    own: I64
    inputs: NDArray[np.int32]
    columns: I64

    def paths(self) -> I64:
        """The nodes from an 8x8 tile to each leaf, (LEVELS, leaves), leaves in preorder."""
        position, leaf = np.arange(len(self.level)), self.output >= 0
        # In preorder, the last node of each level up to a leaf is above it.
        above = [np.where(self.level == level, position, 0) for level in range(LEVELS)]
        return np.stack([np.maximum.accumulate(nodes)[leaf] for nodes in above])

    def entries(self, nodes: I64) -> NDArray[np.int32]:
        """The inputs that the given nodes add, node by node, as positions in ``columns``."""
        ranges = zip(self.start[nodes], self.stop[nodes], strict=True)
        return np.concatenate([self.inputs[start:stop] for start, stop in ranges])


@dataclass(frozen=True)
class Additions:
    """The inputs that the nodes of a tree add: the part of a tree that depends on the mask.

    Attributes:
        counts: (nodes,) int64 number of inputs each node adds to its parent's. Nodes are ordered by
            level, from 8x8 tiles to single outputs, then by channel, row and column.
        inputs: (entries,) int32 the inputs, 0 to D - 1, node by node in that order.
    """

    counts: I64
    inputs: NDArray[np.int32]


def additions(mask: NDArray[np.bool_], shape: tuple[int, ...]) -> Additions:
    """The inputs that tree nodes add, for a mask (D, D) indexed [input, output].

    Vectors (D,) are treated as images of one row.
    """
    c, h, w = as_image(shape)
    d = c * h * w
    # sets[level]: (C, rows, columns, D), whether all outputs of the tile use the input.
    sets = [np.ascontiguousarray(mask.T).reshape(c, h, w, d)]
    for level in range(LEVELS - 1, 0, -1):
        sets.insert(0, _all_of_both(sets[0], _halved(level)))

    entries: list[NDArray[np.int32]] = []
    counts: list[I64] = []
    for level, used in enumerate(sets):
        # One row of tiles at a time, as nonzero's 64-bit indices of all rows would fill memory.
        for channel in range(c):
            for y, row in enumerate(used[channel]):
                extra = row
                if level > 0:
                    rows_halved = _halved(level) == ROWS
                    above = sets[level - 1][channel, y // 2 if rows_halved else y]
                    above = above if rows_halved else above.repeat(2, axis=0)[: len(row)]
                    extra = row & ~above
                entries.append(np.nonzero(extra)[1].astype(np.int32))
                counts.append(np.count_nonzero(extra, axis=1))
    return Additions(np.concatenate(counts), np.concatenate(entries))


def tree_from_additions(added: Additions, shape: tuple[int, ...]) -> MaskTree:
    """The tree whose nodes add the given inputs; the images' shape determines the rest.

    ``added`` must be valid (:func:`is_valid`): compiled loops trust the tree.
    """
    c, h, w = as_image(shape)
    d = c * h * w
    keys = [_preorder_keys(level, c, *grid) for level, grid in enumerate(_grids(h, w))]
    order = np.argsort(np.concatenate(keys), kind="stable")
    level_of = np.concatenate([np.full(len(k), i) for i, k in enumerate(keys)])
    outputs = np.full(len(level_of), -1)
    outputs[level_of == LEVELS - 1] = np.arange(d)
    columns = runs(np.arange(d), d)
    position = positions_in(columns, np.arange(d))
    stops = np.cumsum(added.counts, dtype=np.int64)
    return MaskTree(
        level_of[order],
        (stops - added.counts)[order],
        stops[order],
        outputs[order],
        np.where(outputs[order] >= 0, position[outputs[order]], -1),
        position.astype(np.int32)[added.inputs],
        columns,
    )


def dense_mask(tree: MaskTree, d: int) -> NDArray[np.bool_]:
    """The mask (D, D) that a tree of whole images represents, indexed [input, output]."""
    mask, paths = np.zeros((d, d), np.bool_), tree.paths()
    for output, path in zip(tree.output[paths[-1]], paths.T, strict=True):
        mask[output, tree.columns[tree.entries(path)]] = True
    return np.ascontiguousarray(mask.T)


def mean_mask(tree: MaskTree, d: int) -> F32:
    """The masks averaged over a tree's outputs: (D,) fractions in [0, 1]."""
    nodes, paths = np.arange(len(tree.level)), tree.paths()
    leaves = np.bincount(paths.ravel(), minlength=len(nodes))  # whose masks hold a node's inputs
    inputs = tree.columns[tree.entries(nodes)]
    counts = np.bincount(inputs, np.repeat(leaves, tree.stop - tree.start), minlength=d)
    return (counts / paths.shape[1]).astype(np.float32)


def tile_trees(tree: MaskTree, shape: tuple[int, ...], side: Side) -> list[MaskTree]:
    """The trees of the square tiles of one side, row by row, so that each can have a support.

    Each output is in exactly one tile and keeps its mask. A tile reads only the inputs of its own
    masks. Tiles of a single channel (:data:`golddiff.support.Side`) share more of their masks.
    """
    paths = tree.paths()
    tile = tile_of_each(shape, side)[tree.output[paths[-1]]]
    trees = []
    for t in range(int(tile.max()) + 1):
        nodes = np.unique(paths[:, tile == t])
        outputs, inputs = tree.output[nodes], tree.columns[tree.entries(nodes)]
        leaf = outputs >= 0
        columns = runs(np.union1d(inputs, outputs[leaf]), math.prod(shape))
        own = np.full(len(nodes), -1)
        own[leaf] = positions_in(columns, outputs[leaf])
        counts = (tree.stop - tree.start)[nodes]
        stops = np.cumsum(counts)
        positions = positions_in(columns, inputs).astype(np.int32)
        levels = tree.level[nodes]
        trees.append(MaskTree(levels, stops - counts, stops, outputs, own, positions, columns))
    return trees


def output_masks(tree: MaskTree, outputs: I64) -> MaskTree:
    """A tree of one root node per given output, which are renumbered 0, 1, ... in order.

    It reads only the inputs in their masks.
    """
    paths = tree.paths()
    leaf_of = np.argsort(tree.output[paths[-1]])
    inputs = [tree.entries(path) for path in paths[:, leaf_of[outputs]].T]
    used, positions = np.unique(np.concatenate(inputs), return_inverse=True)
    ends, zero = np.cumsum([0, *map(len, inputs)]), np.zeros(len(outputs), np.int64)
    numbers = np.arange(len(outputs))
    return MaskTree(
        zero, ends[:-1], ends[1:], numbers, zero, positions.astype(np.int32), tree.columns[used]
    )


def is_valid(added: Additions, shape: tuple[int, ...]) -> bool:
    """Whether these are additions of a tree for images of a shape, which compiled loops trust."""
    c, h, w = as_image(shape)
    d, nodes = c * h * w, sum(c * rows * columns for rows, columns in _grids(h, w))
    counts, inputs = added.counts, added.inputs
    if counts.shape != (nodes,) or inputs.ndim != 1:
        return False
    # A node adds each input at most once; this bound also keeps sums of counts from overflowing.
    if counts.min() < 0 or counts.max() > d or counts.sum() != len(inputs):
        return False
    return not len(inputs) or bool(inputs.min() >= 0 and inputs.max() < d)


def _grids(h: int, w: int) -> list[tuple[int, int]]:
    """Rows and columns of the tiles of each level."""
    return [(-(-h // rows), -(-w // columns)) for rows, columns in map(sides, range(LEVELS))]


def _halved(level: int) -> int:
    """The axis of (C, rows, columns) along which the parents of a level's tiles are halved."""
    return ROWS if level % 2 else COLUMNS


def _all_of_both(used: NDArray[np.bool_], axis: int) -> NDArray[np.bool_]:
    """Intersect the sets of pairs along an axis; an unpaired set at the edge is kept."""
    first = np.arange(0, used.shape[axis], 2)
    second = np.minimum(first + 1, used.shape[axis] - 1)
    return used.take(first, axis) & used.take(second, axis)


def _preorder_keys(level: int, c: int, h: int, w: int) -> I64:
    """Sort keys for the tree's preorder: the path from the root, then the level."""
    channel, y, x = np.meshgrid(np.arange(c), np.arange(h), np.arange(w), indexing="ij")
    rows, columns = sides(level)
    y, x = y * rows, x * columns  # the tile's first output
    key = (channel.astype(np.int64) << 32) | ((y >> 3) << 18) | ((x >> 3) << 6)
    for bit in (2, 1, 0):
        key |= (((y >> bit) & 1) << 1 | ((x >> bit) & 1)) << (2 * bit)
    return (key.ravel() << 3) | level
