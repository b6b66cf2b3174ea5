"""The masked posterior on the CPU: masked distances, online softmax and sums in one pass.

Blocks of 64 images are transposed, so that a masked sum adds contiguous runs. No array of
(images, D) logits is ever allocated.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from golddiff.kernels.gather import gather, padded_weights
from golddiff.kernels.lanes import (
    BLOCK,
    NEGLIGIBLE,
    any_above,
    empty_numbers,
    exp,
    largest,
    load_block,
    store,
    sum_of,
)
from golddiff.kernels.mask_tree import LEVELS, MaskTree
from golddiff.kernels.roots import roots
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff.system.numbers import F32


@njit(nogil=True, cache=True)
def write_squares(terms, stored, first_root, second_root, scale, offset):  # type: ignore[no-untyped-def]
    """Each term is the product of :func:`roots` of one input of a query, for a block of images."""
    for n in range(len(first_root)):
        value = load_block(stored, n * BLOCK) * scale
        left, right = offset - first_root[n], offset - second_root[n]
        store(terms, n * BLOCK, (value + left) * (value + right))


@njit(nogil=True, cache=True)
def sum_to(sums, terms, tree, node):  # type: ignore[no-untyped-def]
    """The sum of a node of a mask tree: its parent's, which is in ``sums``, and its own inputs'."""
    total = load_block(sums, tree.level[node] * BLOCK)
    for entry in range(tree.start[node], tree.stop[node]):
        total = total + load_block(terms, np.int64(tree.inputs[entry]) * BLOCK)
    return total


@njit(nogil=True, cache=True)
def _masked_posterior(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, first_root, second_root, scale, offset, gain,
    tree, log_max, total, weighted,
):  # fmt: skip
    d = len(tree.columns)
    stored = np.zeros(d * BLOCK, flat.dtype)
    terms, sums = empty_numbers(d * BLOCK), empty_numbers((LEVELS + 1) * BLOCK)
    sums[:] = 0  # level 0 stays zero: the parent of the root nodes
    for first in range(0, len(rows), BLOCK):
        gather(flat, rows, first, tree.columns, stored)
        for q in range(len(first_root)):
            write_squares(terms, stored, first_root[q], second_root[q], scale, offset)
            maxima, totals, moments = log_max[q], total[q], weighted[q]
            for node in range(len(tree.level)):
                logits = sum_to(sums, terms, tree, node)
                o = tree.output[node]
                if o < 0:
                    store(sums, (tree.level[node] + 1) * BLOCK, logits)
                    continue
                logits = logits * gain + load_block(log_weights, first)
                # any_above is cheap; largest is slow and rarely needed.
                top = maxima[o]
                if not any_above(logits, top - NEGLIGIBLE):
                    continue
                if any_above(logits, top):
                    best = largest(logits)
                    shrink = np.exp(top - best)
                    totals[o] *= shrink
                    moments[o] *= shrink
                    maxima[o] = best
                    top = best
                weights = exp(logits - top)
                totals[o] += sum_of(weights)
                values = load_block(stored, tree.own[node] * BLOCK) * scale + offset
                moments[o] += sum_of(weights * values)


def masked_posterior(
    stored: Stored, part: Support, x: F32, sigma: float, tree: MaskTree
) -> Posterior:
    """Partial posterior with logits l_iq = -sum_n M_nq (x_n - x_in)^2 / (2 sigma^2).

    ``tree`` holds the masks M.
    """
    sums = Posterior.empty(len(x), x.shape[1], x.shape[1], np.float32)
    with stored.resident(part.rows) as (loaded, local_rows):
        add_resident(loaded, Support(local_rows, part.log_weights), x, sigma, tree, sums)
    return sums.in_float64()


def add_resident(
    stored: Stored, images: Support, x: F32, sigma: float, tree: MaskTree, sums: Posterior
) -> None:
    """Add images in memory to the float32 sums of the tree's outputs, as :func:`masked_posterior`.

    The tree may be a tile's; sums of other outputs are unchanged.
    """
    first_root, second_root = roots(x[:, tree.columns], sigma)
    _masked_posterior(
        stored.flat, images.rows, padded_weights(images),
        first_root, second_root, *stored.scaling, np.float32(-precision(sigma)),
        tree, sums.log_max, sums.total, sums.weighted,
    )  # fmt: skip
