"""The masked posterior on the CPU: masked distances, online softmax and sums in one pass.

Images go through in blocks of 64, transposed so that a masked sum adds contiguous runs; no array
of (images, D) logits ever exists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.lanes import (
    LANES,
    any_above,
    any_at_least,
    exp,
    larger,
    largest,
    load,
    load_stored,
    spread,
    store,
    sum_of,
)
from golddiff.kernels.mask_tree import LEVELS, MaskTree
from golddiff.noise import precision
from golddiff.posterior import Posterior

BLOCK = 4 * LANES  # images a block: four registers of sums, none of which waits for another

# exp(-40) is 4e-18: a block of images this far below the best is lost in float32 rounding.
NEGLIGIBLE = np.float32(40.0)
ABSENT = np.float32(-1e37)  # log weight of a place in the last block that holds no image


@njit(nogil=True, cache=True)
def _transpose_block(flat, rows, out):  # type: ignore[no-untyped-def]
    """out[n * BLOCK + i] = flat[rows[i], n], sixteen values at a time: both sides stay in cache."""
    d = flat.shape[1]
    for first in range(0, d, 16):
        last = min(first + 16, d)
        for i in range(len(rows)):
            image = flat[rows[i]]
            for n in range(first, last):
                out[n * BLOCK + i] = image[n]


@njit(nogil=True, cache=True)
def _terms(stored, first_root, second_root, scale, offset, out):  # type: ignore[no-untyped-def]
    """Out = (x_i - a)(x_i - b) for a block of images, value by value."""
    scales = spread(scale)
    for n in range(len(first_root)):
        a, b = spread(offset - first_root[n]), spread(offset - second_root[n])
        for at in range(n * BLOCK, (n + 1) * BLOCK, LANES):
            value = load_stored(stored, at) * scales
            store(out, at, (value + a) * (value + b))


@njit(nogil=True, cache=True)
def _masked_posterior(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, first_root, second_root, scale, offset, gain,
    level, start, stop, output, inputs, log_max, total, weighted,
):  # fmt: skip
    d = flat.shape[1]
    stored = np.zeros(d * BLOCK, flat.dtype)
    terms = np.empty(d * BLOCK, np.float32)
    sums = np.zeros((LEVELS + 1) * BLOCK, np.float32)  # the first stay 0: the roots' parent
    prior = np.empty(BLOCK, np.float32)
    gains, scales, offsets = spread(gain), spread(scale), spread(offset)
    for first in range(0, len(rows), BLOCK):
        count = min(BLOCK, len(rows) - first)
        _transpose_block(flat, rows[first : first + count], stored)
        prior[:] = ABSENT
        prior[:count] = log_weights[first : first + count]
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
                # Whether any is above is soon told; the largest takes long, and is rarely needed.
                ahead = larger(larger(a, b), larger(c, e))
                top = maxima[o]
                if not any_at_least(ahead, top - NEGLIGIBLE):
                    continue
                if any_above(ahead, top):
                    best = largest(ahead)
                    shrink = np.exp(top - best)
                    totals[o] *= shrink
                    moments[o] *= shrink
                    maxima[o] = best
                    top = best
                tops = spread(top)
                a, b, c, e = exp(a - tops), exp(b - tops), exp(c - tops), exp(e - tops)
                totals[o] += sum_of((a + b) + (c + e))
                n = o * BLOCK
                moments[o] += sum_of(
                    (a * (load_stored(stored, n) * scales + offsets)
                     + b * (load_stored(stored, n + LANES) * scales + offsets))
                    + (c * (load_stored(stored, n + 2 * LANES) * scales + offsets)
                       + e * (load_stored(stored, n + 3 * LANES) * scales + offsets))
                )  # fmt: skip


def masked_posterior(
    flat: NDArray[Any],
    rows: NDArray[np.int64],
    log_weights: NDArray[np.float32],
    x: NDArray[np.float32],
    sigma: float,
    tree: MaskTree,
    scale: float,
    offset: float,
) -> Posterior:
    """Partial posterior with logits l_iq = -sum_n M_nq (x_n - x_in)^2 / (2 sigma^2).

    Args:
        flat: (N, D) uint8 or float32 stored values.
        rows: (k,) rows of the support, k >= 1.
        log_weights: (k,) added to the logits.
        x: (b, D) queries.
        sigma: noise level.
        tree: the masks of this sigma.
        scale: stored value times this ...
        offset: ... plus this is the value compared.
    """
    b, d = x.shape
    log_max = np.full((b, d), -np.inf, np.float32)
    total = np.zeros((b, d), np.float32)
    weighted = np.zeros((b, d), np.float32)
    # (x_i - a)(x_i - b) with a = b = x is the square; with a = 2x, b = 0 it lacks x^2, which all
    # images share and which, at high noise, only costs digits.
    first_root, second_root = (x + x, np.zeros_like(x)) if sigma > 1 else (x, x)
    _masked_posterior(
        flat, rows, log_weights, first_root, second_root, np.float32(scale), np.float32(offset),
        np.float32(-precision(sigma)),
        tree.level, tree.start, tree.stop, tree.output, tree.inputs, log_max, total, weighted,
    )  # fmt: skip
    return Posterior(*(a.astype(np.float64) for a in (log_max, total, weighted)))
