"""The masked posterior on the CPU: masked distances, online softmax and sums in one pass.

Blocks of 64 images are transposed, so that a masked sum adds contiguous runs. No array of
(images, D) logits is ever allocated.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from golddiff.kernels.gather import BLOCK, NEGLIGIBLE, gather, gather_weights
from golddiff.kernels.lanes import (
    LANES,
    any_above,
    empty_numbers,
    exp,
    larger,
    largest,
    load,
    spread,
    store,
    sum_of,
)
from golddiff.kernels.mask_tree import MaskTree
from golddiff.kernels.roots import roots
from golddiff.kernels.stored import Stored
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.support import Support
from golddiff.system.numbers import F32


@njit(nogil=True, cache=True)
def _terms(stored, first_root, second_root, scale, offset, out):  # type: ignore[no-untyped-def]
    """Elementwise products (x_i - a)(x_i - b) of a block of images."""
    scales = spread(scale)
    for n in range(len(first_root)):
        a, b = spread(offset - first_root[n]), spread(offset - second_root[n])
        for at in range(n * BLOCK, (n + 1) * BLOCK, LANES):
            value = load(stored, at) * scales
            store(out, at, (value + a) * (value + b))


@njit(nogil=True, cache=True)
def _masked_posterior(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, first_root, second_root, scale, offset, gain,
    level, start, stop, output, own, inputs, columns, log_max, total, weighted,
):  # fmt: skip
    d = len(columns)
    stored = np.zeros(d * BLOCK, flat.dtype)
    terms, sums = empty_numbers(d * BLOCK), empty_numbers((level.max() + 2) * BLOCK)
    sums[:] = 0  # level 0 stays zero: the parent of the root nodes
    prior = empty_numbers(BLOCK)
    gains, scales, offsets = spread(gain), spread(scale), spread(offset)
    for first in range(0, len(rows), BLOCK):
        gather(flat, rows, first, columns, stored)
        gather_weights(log_weights, first, prior)
        for q in range(len(first_root)):
            _terms(stored, first_root[q], second_root[q], scale, offset, terms)
            maxima, totals, moments = log_max[q], total[q], weighted[q]
            for node in range(len(level)):
                at = level[node] * BLOCK
                a, b = load(sums, at), load(sums, at + LANES)
                c, e = load(sums, at + 2 * LANES), load(sums, at + 3 * LANES)
                for entry in range(start[node], stop[node]):
                    n = np.int64(inputs[entry]) * BLOCK
                    a = a + load(terms, n)
                    b = b + load(terms, n + LANES)
                    c = c + load(terms, n + 2 * LANES)
                    e = e + load(terms, n + 3 * LANES)
                o = output[node]
                if o < 0:
                    at += BLOCK
                    store(sums, at, a)
                    store(sums, at + LANES, b)
                    store(sums, at + 2 * LANES, c)
                    store(sums, at + 3 * LANES, e)
                    continue
                a = a * gains + load(prior, 0)
                b = b * gains + load(prior, LANES)
                c = c * gains + load(prior, 2 * LANES)
                e = e * gains + load(prior, 3 * LANES)
                # any_above is cheap; largest is slow and rarely needed.
                highest = larger(larger(a, b), larger(c, e))
                top = maxima[o]
                if not any_above(highest, top - NEGLIGIBLE):
                    continue
                if any_above(highest, top):
                    best = largest(highest)
                    shrink = np.exp(top - best)
                    totals[o] *= shrink
                    moments[o] *= shrink
                    maxima[o] = best
                    top = best
                tops = spread(top)
                a, b, c, e = exp(a - tops), exp(b - tops), exp(c - tops), exp(e - tops)
                totals[o] += sum_of((a + b) + (c + e))
                n = own[node] * BLOCK
                moments[o] += sum_of(
                    (a * (load(stored, n) * scales + offsets)
                     + b * (load(stored, n + LANES) * scales + offsets))
                    + (c * (load(stored, n + 2 * LANES) * scales + offsets)
                       + e * (load(stored, n + 3 * LANES) * scales + offsets))
                )  # fmt: skip


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
        stored.flat, images.rows, images.log_importance().astype(np.float32),
        first_root, second_root, *stored.scaling, np.float32(-precision(sigma)),
        tree.level, tree.start, tree.stop, tree.output, tree.own, tree.inputs,
        tree.columns, sums.log_max, sums.total, sums.weighted,
    )  # fmt: skip
