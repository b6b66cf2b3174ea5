"""All logits of the masked posterior in float64, for attribution.

The masks share sums as in :mod:`golddiff.kernels.pca_cpu`, but this kernel returns the logit of
each image instead of sums over images.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from golddiff.kernels.mask_tree import LEVELS, MaskTree
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.system.numbers import F32, F64, I64

BLOCK = 64  # images side by side, so that a masked sum adds contiguous runs


@njit(nogil=True, cache=True)
def _masked_logits(  # type: ignore[no-untyped-def]
    flat, rows, x, scale, offset, gain, level, start, stop, output, inputs, columns, out
):
    terms = np.zeros((len(columns), BLOCK))
    sums = np.zeros((level.max() + 2, BLOCK))  # row 0 stays zero: the parent of the root nodes
    for first in range(0, len(rows), BLOCK):
        count = min(BLOCK, len(rows) - first)
        for i in range(count):
            image = flat[rows[first + i]]
            for c in range(len(columns)):
                n = columns[c]
                difference = np.float64(np.float32(image[n]) * scale + offset) - x[n]
                terms[c, i] = difference * difference
        for node in range(len(level)):
            parent, node_sums = sums[level[node]], sums[level[node] + 1]
            node_sums[:] = parent
            for entry in range(start[node], stop[node]):
                term = terms[inputs[entry]]
                for i in range(BLOCK):
                    node_sums[i] += term[i]
            o = output[node]
            if o >= 0:
                for i in range(count):
                    out[o, first + i] = node_sums[i] * gain


def masked_logits(stored: Stored, rows: I64, x: F32, sigma: float, tree: MaskTree) -> F64:
    """l_qi = -sum_n M_nq (x_n - x_in)^2 / (2 sigma^2) of one query (D,), (outputs, k) float64.

    ``tree`` holds the masks M of all outputs, or of some (:func:`output_masks`).
    """
    out = np.empty((int(tree.output.max()) + 1, len(rows)))
    with stored.resident(rows) as (loaded, local_rows):
        _masked_logits(
            loaded.flat, local_rows, x.astype(np.float64), *stored.scaling, -precision(sigma),
            tree.level, tree.start, tree.stop, tree.output, tree.inputs,
            tree.columns, out,
        )  # fmt: skip
    return out


def output_masks(tree: MaskTree, outputs: I64) -> MaskTree:
    """A tree of one root node per given output, which are renumbered 0, 1, ... in order.

    It reads only the inputs in their masks.
    """
    leaves = np.flatnonzero(tree.output >= 0)
    leaf_of = np.zeros(int(tree.output.max()) + 1, np.int64)
    leaf_of[tree.output[leaves]] = leaves
    nodes_of_level = [np.flatnonzero(tree.level == level) for level in range(LEVELS)]
    inputs = []
    for leaf in leaf_of[outputs].tolist():
        # In preorder, the last node of each level up to the leaf is above it.
        path = [
            nodes[np.searchsorted(nodes, leaf, side="right") - 1]
            for nodes in nodes_of_level[: tree.level[leaf] + 1]
        ]
        inputs.append(np.concatenate([tree.inputs[tree.start[n] : tree.stop[n]] for n in path]))
    used, positions = np.unique(np.concatenate(inputs), return_inverse=True)
    ends, zero = np.cumsum([0, *map(len, inputs)]), np.zeros(len(outputs), np.int64)
    numbers = np.arange(len(outputs))
    return MaskTree(
        zero, ends[:-1], ends[1:], numbers, zero, positions.astype(np.int32), tree.columns[used]
    )
