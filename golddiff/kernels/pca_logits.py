"""Every logit of the masked posterior, in float64: what attribution needs and sampling does not.

The masks' shared sums are those of :mod:`golddiff.kernels.pca_cpu`; here each image's own logit
leaves the kernel, instead of the sums over all images.
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
    d = flat.shape[1]
    terms = np.zeros((d, BLOCK))
    sums = np.zeros((level.max() + 2, BLOCK))  # the first row stays 0: the roots' parent
    for first in range(0, len(rows), BLOCK):
        count = min(BLOCK, len(rows) - first)
        for i in range(count):
            image = flat[rows[first + i]]
            for n in range(d):
                difference = np.float64(np.float32(image[n]) * scale + offset) - x[n]
                terms[n, i] = difference * difference
        for node in range(len(level)):
            parent, mine = sums[level[node]], sums[level[node] + 1]
            mine[:] = parent
            for entry in range(start[node], stop[node]):
                term = terms[columns[inputs[entry]]]
                for i in range(BLOCK):
                    mine[i] += term[i]
            o = output[node]
            if o >= 0:
                for i in range(count):
                    out[o, first + i] = mine[i] * gain


def masked_logits(stored: Stored, rows: I64, x: F32, sigma: float, tree: MaskTree) -> F64:
    """l_qi = -sum_n M_nq (x_n - x_in)^2 / (2 sigma^2) of one query (D,), (outputs, k) float64.

    M are the masks of a tree, or of the part of it that some outputs need.
    """
    out = np.empty((int(tree.output.max()) + 1, len(rows)))
    with stored.resident(rows) as (here, places):
        _masked_logits(
            here.flat, places, x.astype(np.float64), *stored.scaling, -precision(sigma),
            tree.level, tree.start, tree.stop, tree.output, tree.inputs,
            tree.columns, out,
        )  # fmt: skip
    return out


def branches(tree: MaskTree, outputs: I64) -> MaskTree:
    """The masks of a few outputs, numbered 0, 1, ... in the order given: a node each, by itself."""
    above = np.zeros(LEVELS, np.int64)  # the current node of each level
    masks: dict[int, list[slice]] = {}
    for node, (level, output) in enumerate(zip(tree.level, tree.output, strict=True)):
        above[level] = node
        if output in outputs:
            masks[int(output)] = [slice(tree.start[n], tree.stop[n]) for n in above[: level + 1]]
    inputs = [np.concatenate([tree.inputs[part] for part in masks[int(o)]]) for o in outputs]
    ends, none = np.cumsum([0, *map(len, inputs)]), np.zeros(len(outputs), np.int64)
    numbers = np.arange(len(outputs))
    return MaskTree(none, ends[:-1], ends[1:], numbers, none, np.concatenate(inputs), tree.columns)
