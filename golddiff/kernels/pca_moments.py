"""Second moments of the masked posterior, whose weights a first pass has normalised.

With w_qi the weights of output q, m_q its mean, u a cotangent and c_qi = w_qi u_q (x_iq - m_q), one
pass over the images gives

    variance of q            sum_i w_qi (x_iq - m_q)^2
    gradient of u . m in x   sum_i (x_in - x_n) / sigma^2 sum_q M_nq c_qi

Masked sums run down the tree of :mod:`golddiff.kernels.mask_tree`, and the sums over outputs back
up: a node adds the c of all outputs below it to its inputs.
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
    load_block,
    spread_block,
    store,
    sum_of,
)
from golddiff.kernels.mask_tree import LEVELS, MaskTree
from golddiff.kernels.pca_cpu import sum_to, write_squares
from golddiff.kernels.roots import roots
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.support import Support
from golddiff.system.numbers import F32, F64


@njit(nogil=True, cache=True)
def _masked_moments(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, first_root, second_root, scale, offset, gain,
    tree, mean, log_max, share, cotangent, out,
):  # fmt: skip
    d = len(tree.columns)
    stored = np.zeros(d * BLOCK, flat.dtype)
    terms, pulls = empty_numbers(d * BLOCK), empty_numbers(d * BLOCK)
    sums, pulled = empty_numbers((LEVELS + 1) * BLOCK), empty_numbers((LEVELS + 1) * BLOCK)
    sums[:] = 0  # level 0 stays zero: the parent of the root nodes
    heavy, busy = np.zeros(d, np.bool_), np.zeros(LEVELS + 1, np.bool_)
    zero = spread_block(np.float32(0.0))
    for first in range(0, len(rows), BLOCK):
        gather(flat, rows, first, tree.columns, stored)
        for q in range(len(first_root)):
            write_squares(terms, stored, first_root[q], second_root[q], scale, offset)
            any_heavy = False
            for node in range(len(tree.level)):
                distances = sum_to(sums, terms, tree, node)
                o, place = tree.output[node], tree.own[node]
                if o < 0:
                    store(sums, (tree.level[node] + 1) * BLOCK, distances)
                    continue
                relative = distances * gain + load_block(log_weights, first) - log_max[q, o]
                heavy[place] = any_above(relative, -NEGLIGIBLE)
                if not heavy[place]:
                    continue
                any_heavy = True
                weights = exp(relative) * share[q, o]
                deviations = load_block(stored, place * BLOCK) * scale + (offset - mean[q, o])
                weighted = weights * deviations
                if len(cotangent):
                    pull = weighted * cotangent[q, o]
                    store(pulls, place * BLOCK, pull)
                    out[q, 1, o] -= sum_of(pull * distances)
                    out[q, 2, o] += sum_of(pull)
                    out[q, 3, o] -= sum_of(weights * distances)
                else:
                    out[q, 0, o] += sum_of(weighted * deviations)
            if not (any_heavy and len(cotangent)):
                continue
            for n in range(d):
                store(terms, n * BLOCK, zero)  # now sums over outputs
            for node in range(len(tree.level) - 1, -1, -1):  # children before their parent
                at, place = tree.level[node], tree.own[node]
                if place >= 0:
                    if not heavy[place]:
                        continue
                    total = load_block(pulls, place * BLOCK)
                else:
                    if not busy[at + 1]:
                        continue
                    total = load_block(pulled, (at + 1) * BLOCK)
                    busy[at + 1] = False
                for entry in range(tree.start[node], tree.stop[node]):
                    to = np.int64(tree.inputs[entry]) * BLOCK
                    store(terms, to, load_block(terms, to) + total)
                if busy[at]:
                    total = total + load_block(pulled, at * BLOCK)
                store(pulled, at * BLOCK, total)
                busy[at] = True
            busy[0] = False
            for n in range(d):
                # c sums to 0 over the images, so any constant may replace x_n: the mean is closest.
                center = offset - mean[q, tree.columns[n]]
                values = load_block(stored, n * BLOCK) * scale + center
                out[q, 0, tree.columns[n]] += sum_of(load_block(terms, n * BLOCK) * values)


def masked_moments(
    stored: Stored,
    images: Support,
    x: F64,
    sigma: float,
    tree: MaskTree,
    known: tuple[F32, F32, F32, F32],
) -> F64:
    """Sums over images in memory, for the outputs of a tree, in float32 loops; one thread.

    ``tree`` holds the masks of all outputs, or of a tile's; ``known`` is
    :meth:`golddiff.store.exact.FirstPass.in_float32`, with or without u.

    Returns:
        Without u, the variance (b, D). With u, (b, D + 3 D): the gradient of u . m in x, then, for
        its derivative in g = 1 / (2 sigma^2), the sums over i of c_qi s_qi, c_qi and w_qi s_qi,
        with s_qi = dl_qi/dg. Outputs outside the tree are 0.
    """
    gain, *_, cotangent = precision(sigma), *known
    first_root, second_root = roots(x[:, tree.columns].astype(np.float32), sigma)
    out = np.zeros((len(x), 4 if len(cotangent) else 1, x.shape[1]))
    _masked_moments(
        stored.flat, images.rows, padded_weights(images), first_root, second_root,
        *stored.scaling, np.float32(-gain), tree, *known, out,
    )  # fmt: skip
    if len(cotangent):
        out[:, 0] *= 2 * gain
    return out.reshape(len(x), -1)
