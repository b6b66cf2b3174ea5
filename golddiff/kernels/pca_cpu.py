"""The masked posterior on the CPU: masked distances, online softmax and sums in one pass.

Images go through in blocks of 64, transposed so that a masked sum adds contiguous runs; no array
of (images, D) logits ever exists.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.exp import exp_block
from golddiff.kernels.mask_tree import LEVELS, MaskTree
from golddiff.kernels.rows import FAST
from golddiff.posterior import Posterior

BLOCK = 64

# exp(-40) is 4e-18: a block of images this far below the best is lost in float32 rounding.
NEGLIGIBLE = np.float32(40.0)


@njit(nogil=True, cache=True, fastmath=FAST)  # type: ignore[untyped-decorator]
def _transpose_block(flat, rows, out):  # type: ignore[no-untyped-def]
    """out[n, i] = flat[rows[i], n], sixteen values at a time so that both sides stay in cache."""
    d = flat.shape[1]
    for first in range(0, d, 16):
        last = min(first + 16, d)
        for i in range(len(rows)):
            r = rows[i]
            for n in range(first, last):
                out[n, i] = flat[r, n]


@njit(nogil=True, cache=True, fastmath=FAST)  # type: ignore[untyped-decorator]
def _terms(stored, query, scale, offset, centred, out):  # type: ignore[no-untyped-def]
    """Squared differences, or x_i (x_i - 2x): the square without x^2, which all images share."""
    for n in range(len(query)):
        a, s, t = query[n], stored[n], out[n]
        if centred:
            for i in range(BLOCK):
                value = np.float32(s[i]) * scale + offset
                t[i] = value * (value - np.float32(2.0) * a)
        else:
            for i in range(BLOCK):
                difference = a - (np.float32(s[i]) * scale + offset)
                t[i] = difference * difference


@njit(nogil=True, cache=True, fastmath=FAST)  # type: ignore[untyped-decorator]
def _add_rows(base, terms, rows, out):  # type: ignore[no-untyped-def]
    """out = base + the sum of the given rows of ``terms``, four rows a pass over ``out``."""
    for i in range(BLOCK):
        out[i] = base[i]
    whole = len(rows) // 4 * 4
    for e in range(0, whole, 4):
        a, b = terms[rows[e]], terms[rows[e + 1]]
        c, d = terms[rows[e + 2]], terms[rows[e + 3]]
        for i in range(BLOCK):
            out[i] += (a[i] + b[i]) + (c[i] + d[i])
    for e in range(whole, len(rows)):
        a = terms[rows[e]]
        for i in range(BLOCK):
            out[i] += a[i]


@njit(nogil=True, cache=True, fastmath=FAST)  # type: ignore[untyped-decorator]
def _masked_posterior(  # type: ignore[no-untyped-def]
    flat, rows, log_weights, x, scale, offset, gain, centred,
    level, start, stop, output, inputs, log_max, total, weighted,
):  # fmt: skip
    d = flat.shape[1]
    stored = np.empty((d, BLOCK), flat.dtype)
    terms = np.empty((d, BLOCK), np.float32)
    sums = np.zeros((LEVELS + 1, BLOCK), np.float32)  # sums[0] stays 0: the root's parent
    logits = np.empty(BLOCK, np.float32)
    prior = np.empty(BLOCK, np.float32)
    bits = np.empty(BLOCK, np.int32)
    for first in range(0, len(rows), BLOCK):
        count = min(BLOCK, len(rows) - first)
        if count < BLOCK:
            stored[:] = flat[rows[first], 0]
        _transpose_block(flat, rows[first : first + count], stored)
        for i in range(BLOCK):
            prior[i] = log_weights[first + i] if i < count else -np.inf
        for q in range(len(x)):
            _terms(stored, x[q], scale, offset, centred, terms)
            maxima, totals, moments = log_max[q], total[q], weighted[q]
            for node in range(len(level)):
                acc = sums[level[node] + 1]
                _add_rows(sums[level[node]], terms, inputs[start[node] : stop[node]], acc)
                o = output[node]
                if o < 0:
                    continue
                best = np.float32(-np.inf)
                for i in range(BLOCK):
                    logits[i] = acc[i] * gain + prior[i]
                    best = max(best, logits[i])
                if best < maxima[o] - NEGLIGIBLE:
                    continue
                if best > maxima[o]:
                    shrink = np.exp(maxima[o] - best)
                    totals[o] *= shrink
                    moments[o] *= shrink
                    maxima[o] = best
                exp_block(logits, maxima[o], bits)
                value = stored[o]
                mass = np.float32(0.0)
                moment = np.float32(0.0)
                for i in range(BLOCK):
                    mass += logits[i]
                    moment += logits[i] * (np.float32(value[i]) * scale + offset)
                totals[o] += mass
                moments[o] += moment


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

    Above sigma 1 the logits leave out sum_n M_nq x_n^2, which no image changes: less rounding.

    Args:
        flat: (N, D) uint8 or float32 stored values.
        rows: (k,) rows of the support, k >= 1.
        log_weights: (k,) added to the logits.
        x: (b, D) queries.
        sigma: noise level.
        tree: the masks of this sigma.
        scale, offset: from stored values to [-1, 1].
    """
    b, d = x.shape
    log_max = np.full((b, d), -np.inf, np.float32)
    total = np.zeros((b, d), np.float32)
    weighted = np.zeros((b, d), np.float32)
    _masked_posterior(
        flat, rows, log_weights, x, np.float32(scale), np.float32(offset),
        np.float32(-0.5 / sigma**2), sigma > 1,
        tree.level, tree.start, tree.stop, tree.output, tree.inputs, log_max, total, weighted,
    )  # fmt: skip
    return Posterior(*(a.astype(np.float64) for a in (log_max, total, weighted)))
