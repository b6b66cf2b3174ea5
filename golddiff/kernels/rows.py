"""Compiled loops over stored rows: squared distances and weighted sums, converted on the fly.

Differences are float32; their squares are summed in float32 over 256 values, then in float64, so
that large sums (sigma 80) keep the posterior's precision. At sigma 0.002, images that are nearly
tied and far from the query need more: those few are compared again in float64. A result depends on
its query and row alone, so it is bitwise the same for any batch or chunk.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from golddiff.kernels.lanes import LANES, empty_numbers, load, spread, store, sum_of
from golddiff.kernels.stored import Stored
from golddiff.system.numbers import F32, F64, I64
from golddiff.system.parallel import for_each

# Sums may be reordered so that they vectorise; NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "arcp", "nsz"}

ROWS_PER_TASK = 512

ROWS = 4  # rows converted and summed together: independent additions hide each other's latency
STRETCH = 256  # values of a row that are converted and summed in float32 at a time

# Largest rounding error of a value stored * scale + offset with stored * scale <= 2: 2^-24 each
# from the product and from scale, 2^-25 from the sum. Equal stored values have equal errors.
VALUE_ERROR = 2.5 * 2.0**-24
# An image is compared again in float64 if rounding its values may change its normalised weight by
# more. Means over 512 digits or patches, sigma 0.002 to 80, were then within 5e-6 of float64's.
WEIGHT_TOL = 1e-6
# Logits this far below the best get weight 0: 10^9 of them are below float32's resolution.
LOG_CUTOFF = math.log(1e-18)
NO_MEANS = np.empty(0, np.float32)


@njit(nogil=True, cache=True)
def _convert(flat, rows, first, start, scale, offset, values):  # type: ignore[no-untyped-def]
    """Convert a stretch of ROWS rows, padded with zeros; past the last row, repeat it."""
    d = flat.shape[1]
    length = min(STRETCH, d - start)
    whole = length // LANES * LANES
    for r in range(ROWS):
        row, at = rows[min(first + r, len(rows) - 1)], r * STRETCH
        for n in range(0, whole, LANES):
            store(values, at + n, load(flat, row * d + start + n) * scale + offset)
        for n in range(whole, length):
            values[at + n] = np.float32(flat[row, start + n]) * scale + offset
        if whole < length:
            values[at + length : at + whole + LANES] = np.float32(0.0)


@njit(nogil=True, cache=True)
def _pairs(flat, rows, queries, scale, offset, means, values, out):  # type: ignore[no-untyped-def]
    """Squared distances, or inner products with values minus ``means``, if any.

    ``queries`` and ``means`` are flat, each padded to whole LANES.
    """
    d = flat.shape[1]
    padded = -(-d // LANES) * LANES
    totals = np.empty((len(out), ROWS))
    for first in range(0, len(rows), ROWS):
        totals[:] = 0.0
        for start in range(0, d, STRETCH):
            _convert(flat, rows, first, start, scale, offset, values)
            for q in range(len(out)):
                at, total = q * padded + start, totals[q]
                a = b = c = e = spread(np.float32(0.0))
                stop = min(STRETCH, padded - start)
                for n in range(0, stop if len(means) else 0, LANES):
                    value, mean = load(queries, at + n), load(means, at + n)
                    a = a + value * (load(values, n) - mean)
                    b = b + value * (load(values, n + STRETCH) - mean)
                    c = c + value * (load(values, n + 2 * STRETCH) - mean)
                    e = e + value * (load(values, n + 3 * STRETCH) - mean)
                for n in range(0, 0 if len(means) else stop, LANES):
                    value = load(queries, at + n)
                    o = value - load(values, n)
                    p = value - load(values, n + STRETCH)
                    r = value - load(values, n + 2 * STRETCH)
                    s = value - load(values, n + 3 * STRETCH)
                    a, b, c, e = a + o * o, b + p * p, c + r * r, e + s * s
                total[0] += sum_of(a)
                total[1] += sum_of(b)
                total[2] += sum_of(c)
                total[3] += sum_of(e)
        for q in range(len(out)):
            for r in range(min(ROWS, len(rows) - first)):
                out[q, first + r] = totals[q, r]


@njit(nogil=True, cache=True, fastmath=FAST)
def _in_float64(row, query, scale, offset):  # type: ignore[no-untyped-def]
    total = 0.0
    for n in range(len(row)):
        difference = np.float64(query[n]) - (np.float64(row[n]) * scale + offset)
        total += difference * difference
    return total


@njit(nogil=True, cache=True, fastmath=FAST)
def _weights(flat, rows, prior, x, gain, scale, offset, out, log_max):  # type: ignore[no-untyped-def]
    """Turn squared distances ``out`` into weights in place; see :func:`weights_of`."""
    k, d = len(rows), flat.shape[1]
    weights = np.empty(k)
    for q in range(len(x)):
        logits = out[q]
        heaviest, best = -np.inf, -np.inf
        for j in range(k):
            heaviest = max(heaviest, prior[q, j])
            logits[j] = prior[q, j] - gain * logits[j]
            best = max(best, logits[j])
        total = 0.0
        for j in range(k):
            relative = logits[j] - best
            weights[j] = np.exp(relative) if relative > LOG_CUTOFF else 0.0
            total += weights[j]
        # |d - d'| <= 2 VALUE_ERROR sum_n |x_n - x_in| <= 2 VALUE_ERROR sqrt(D d). For images within
        # 30 of the best logit, gain d = log weight - logit is at most heaviest - best + 30.
        rounding = 2 * VALUE_ERROR * np.sqrt(d * gain * (heaviest - best + 30))
        # A usual query x0 + sigma eps has logits of about -d / 2; far from it, sums err too. The
        # errors of n images of similar weights add up to sqrt(n) times one; n is about ``total``.
        far = 2.0**-24 * max(heaviest - best - 2 * d, 0.0)
        tol = WEIGHT_TOL if far == 0.0 else WEIGHT_TOL / np.sqrt(total)
        rounding += far
        # An image's true normalised weight is at most exp(4 rounding) times the computed one.
        threshold = best + np.log(tol * total / (rounding + 1e-300)) - 4 * rounding
        largest, recomputed = -np.inf, False
        for j in range(k):
            if logits[j] > threshold:
                recomputed = True
                logits[j] = prior[q, j] - gain * _in_float64(flat[rows[j]], x[q], scale, offset)
            largest = max(largest, logits[j])
        log_max[q] = largest
        for j in range(k):
            if recomputed:
                relative = logits[j] - largest
                weights[j] = np.exp(relative) if relative > LOG_CUTOFF else 0.0
            logits[j] = weights[j]


@njit(nogil=True, cache=True)
def _add(sums, at, weights, w, values, stop):  # type: ignore[no-untyped-def]
    """Add a stretch of ROWS rows, weighted by weights[w:], to a query's sums."""
    a, b, c, e = weights[w], weights[w + 1], weights[w + 2], weights[w + 3]
    for n in range(0, stop, LANES):
        total = load(sums, at + n) + load(values, n) * a
        total = total + load(values, n + STRETCH) * b
        total = total + load(values, n + 2 * STRETCH) * c
        store(sums, at + n, total + load(values, n + 3 * STRETCH) * e)


@njit(nogil=True, cache=True)
def _add_squares(sums, at, weights, w, values, stop, means):  # type: ignore[no-untyped-def]
    """Like :func:`_add`, for squared differences to the query's mean."""
    a, b, c, e = weights[w], weights[w + 1], weights[w + 2], weights[w + 3]
    for n in range(0, stop, LANES):
        mean = load(means, at + n)
        o = load(values, n) - mean
        p = load(values, n + STRETCH) - mean
        r = load(values, n + 2 * STRETCH) - mean
        s = load(values, n + 3 * STRETCH) - mean
        store(sums, at + n, load(sums, at + n) + (o * a * o + p * b * p) + (r * c * r + s * e * s))


@njit(nogil=True, cache=True)
def _weighted_sums(flat, rows, weights, scale, offset, means, out):  # type: ignore[no-untyped-def]
    """Weighted sums of values, or of squared differences to ``means`` (b * padded,) if any."""
    d = flat.shape[1]
    padded = -(-d // LANES) * LANES
    sums, values = empty_numbers(len(out) * padded), empty_numbers(ROWS * STRETCH)
    sums[:] = np.float32(0.0)
    count = len(weights) // len(out)
    for first in range(0, count, ROWS):
        for start in range(0, d, STRETCH):
            _convert(flat, rows, first, start, scale, offset, values)
            stop = min(STRETCH, padded - start)
            for q in range(len(out)):
                w = q * count + first  # an index: slicing would take as long as the addition
                if weights[w] or weights[w + 1] or weights[w + 2] or weights[w + 3]:
                    at = q * padded + start
                    if len(means):
                        _add_squares(sums, at, weights, w, values, stop, means)
                    else:
                        _add(sums, at, weights, w, values, stop)
    for q in range(len(out)):
        for n in range(d):  # a slice would compile the text of its error message, for 3 s
            out[q, n] = sums[q * padded + n]


def distances_of(stored: Stored, rows: I64, x: F32) -> F64:
    """Like :func:`squared_distances`, for images in memory and on one thread."""
    return _pairwise(stored, rows, x, NO_MEANS)


def products_of(stored: Stored, rows: I64, u: F64, means: F64) -> F64:
    """Inner products u_q . (x_i - means_q) of every query and row, (b, k); one thread."""
    return _pairwise(stored, rows, u, _padded(means))


def _pairwise(stored: Stored, rows: I64, x: NDArray[np.floating], means: F32) -> F64:
    """Allocates outside compiled code: Numba compiles copies into slices for seconds."""
    values, out = empty_numbers(ROWS * STRETCH), np.empty((len(x), len(rows)))
    _pairs(stored.flat, rows, _padded(x), *stored.scaling, means, values, out)
    return out


def _padded(x: NDArray[np.floating]) -> F32:
    """Rows (b, d) as one flat array, each padded with zeros to whole LANES."""
    b, d = x.shape
    width = -(-d // LANES) * LANES
    out: F32 = empty_numbers(b * width)
    out[:] = 0
    out.reshape(b, width)[:, :d] = x
    return out


def weights_of(stored: Stored, rows: I64, log_weights: F64, x: F32, gain: float) -> tuple[F64, F64]:
    """The largest logit, (b,), and exp(logit - largest), (b, k), for images in memory.

    Log weights are (k,), or (b, k) if queries differ.
    A logit is log weight - gain ||x_q - x_i||^2, accurate enough that weighted averages of values
    of spread 1 are right to 1e-5. One thread.
    """
    weights, log_max = distances_of(stored, rows, x), np.empty(len(x))
    # A copy, since loops would compile again for a broadcast array.
    prior = np.array(np.broadcast_to(log_weights, weights.shape), order="C")
    scaling = stored.scale, stored.offset
    _weights(stored.flat, rows, prior, x, gain, *scaling, weights, log_max)
    return log_max, weights


def exact_distances(stored: Stored, rows: I64, x: F32) -> F64:
    """||x - x_i||^2 (k,) of one query (D,) in float64, for images in memory; one thread."""
    return np.array([_in_float64(stored.flat[i], x, stored.scale, stored.offset) for i in rows])


def sums_of(stored: Stored, rows: I64, weights: F64, means: F64 | None = None) -> F64:
    """Sum over j of weights[q, j] * x_{rows[j]}, (b, D), for images in memory; one thread.

    With ``means`` (b, D), the sum of weights[q, j] * (x_{rows[j]} - means[q])^2. Sums are float32
    and meant for a few hundred rows; rows of weight zero are skipped.
    """
    out = np.zeros((len(weights), stored.flat.shape[1]))
    used = np.flatnonzero(weights.any(axis=0))
    padded = np.zeros((len(weights), -(-len(used) // ROWS) * ROWS), np.float32)
    padded[:, : len(used)] = weights[:, used]
    centers = NO_MEANS if means is None else _padded(means)
    if len(used):
        _weighted_sums(stored.flat, rows[used], padded.ravel(), *stored.scaling, centers, out)
    return out


def squared_distances(stored: Stored, rows: I64, x: F32) -> F64:
    """||x_q - x_i||^2 for every query and row, (b, k) float64."""
    out = np.empty((len(x), len(rows)))

    def task(start: int) -> None:
        part = slice(start, start + ROWS_PER_TASK)
        with stored.resident(rows[part]) as (loaded, local_rows):
            out[:, part] = distances_of(loaded, local_rows, x)

    for_each(task, range(0, len(rows), ROWS_PER_TASK))
    return out
