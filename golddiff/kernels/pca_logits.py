"""All logits of the masked posterior in float64, for attribution.

The masks share sums as in :mod:`golddiff.kernels.pca_cpu`, also over blocks of 64 images, but this
kernel returns the logit of each image instead of sums over images.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from golddiff.kernels.lanes import BLOCK
from golddiff.kernels.mask_tree import LEVELS, MaskTree
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.system.numbers import F32, F64, I64


@njit(nogil=True, cache=True)
def _masked_logits(  # type: ignore[no-untyped-def]
    flat, rows, x, scale, offset, gain, tree, out
):
    terms = np.zeros((len(tree.columns), BLOCK))
    sums = np.zeros((LEVELS + 1, BLOCK))  # row 0 stays zero: the parent of the root nodes
    for first in range(0, len(rows), BLOCK):
        count = min(BLOCK, len(rows) - first)
        for i in range(count):
            image = flat[rows[first + i]]
            for c in range(len(tree.columns)):
                n = tree.columns[c]
                difference = np.float64(np.float32(image[n]) * scale + offset) - x[n]
                terms[c, i] = difference * difference
        for node in range(len(tree.level)):
            parent, node_sums = sums[tree.level[node]], sums[tree.level[node] + 1]
            for i in range(BLOCK):
                node_sums[i] = parent[i]
            for entry in range(tree.start[node], tree.stop[node]):
                term = terms[tree.inputs[entry]]
                for i in range(BLOCK):
                    node_sums[i] += term[i]
            o = tree.output[node]
            if o >= 0:
                for i in range(count):
                    out[o, first + i] = node_sums[i] * gain


def masked_logits(stored: Stored, rows: I64, x: F32, sigma: float, tree: MaskTree) -> F64:
    """l_qi = -sum_n M_nq (x_n - x_in)^2 / (2 sigma^2) of one query (D,), (outputs, k) float64.

    ``tree`` holds the masks M of all outputs, or of some
    (:func:`golddiff.kernels.mask_tree.output_masks`).
    """
    out = np.empty((int(tree.output.max()) + 1, len(rows)))
    with stored.resident(rows) as (loaded, local_rows):
        _masked_logits(
            loaded.flat, local_rows, x.astype(np.float64), *stored.scaling, -precision(sigma),
            tree, out,
        )  # fmt: skip
    return out
