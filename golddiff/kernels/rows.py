"""Compiled loops over stored rows: squared distances and weighted sums, converted on the fly.

Differences are true float32 differences, summed in float64 every 256 values: sigma 80 (large sums)
does not lose the posterior to rounding. Sigma 0.002 would, where images are nearly tied far from
the query: the few images that this matters to are compared again in float64. A result depends on
its query and row alone, so it is the same, to the bit, whatever the batch or the chunk.
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

# Sums may be reordered (that is what vectorises them), but NaN and infinity keep their meaning.
FAST = {"reassoc", "contract", "arcp", "nsz"}

ROWS_PER_TASK = 512

ROWS = 4  # side by side: each hides how long the others' additions take
STRETCH = 256  # values summed in float32, and the room for a row's

# A stored value times its scale, up to 2, plus its offset: the float32 product, its factor and the
# sum are rounded by at most 2^-24, 2^-24 and 2^-25, all values of a grey level alike.
OFF = 2.5 * 2.0**-24
# How far the rounding of one image's logit may move its share of the weight; some hundred images
# at this limit, rounded at random, move their mean by a tenth of 1e-5 in units of their spread.
LEAST = 1e-6
# Logits this far below the best weigh nothing: below float32's resolution, even of 10^9 images.
NOTHING = math.log(1e-18)
NO_NUMBERS = np.empty(0, np.float32)


@njit(nogil=True, cache=True)
def _convert(octets, numbers, rows, first, start, scale, offset, values):  # type: ignore[no-untyped-def]
    """A stretch of ROWS rows, side by side, zero past their ends; no rows: the last one again."""
    d = octets.shape[1]
    length = min(STRETCH, d - start)
    whole = length // LANES * LANES
    scales, offsets = spread(scale), spread(offset)
    for r in range(ROWS):
        row, to = rows[min(first + r, len(rows) - 1)], r * STRETCH
        if len(octets):
            for n in range(0, whole, LANES):
                value = load(octets, row * d + start + n)
                store(values, to + n, value * scales + offsets)
            for n in range(whole, length):
                values[to + n] = np.float32(octets[row, start + n]) * scale + offset
        else:
            for n in range(0, whole, LANES):
                value = load(numbers, row * d + start + n)
                store(values, to + n, value * scales + offsets)
            for n in range(whole, length):
                values[to + n] = numbers[row, start + n] * scale + offset
        if whole < length:
            values[to + length : to + whole + LANES] = np.float32(0.0)


@njit(nogil=True, cache=True)
def _pairs(octets, numbers, rows, queries, scale, offset, products, values, out):  # type: ignore[no-untyped-def]
    """Distances or products; of queries one after the other, zero past their ends."""
    d = octets.shape[1]
    padded = -(-d // LANES) * LANES
    totals = np.empty((len(out), ROWS))
    for first in range(0, len(rows), ROWS):
        totals[:] = 0.0
        for start in range(0, d, STRETCH):
            _convert(octets, numbers, rows, first, start, scale, offset, values)
            for q in range(len(out)):
                at, total = q * padded + start, totals[q]
                a = b = c = e = spread(np.float32(0.0))
                stop = min(STRETCH, padded - start)
                for n in range(0, stop if products else 0, LANES):
                    value = load(queries, at + n)
                    a = a + value * load(values, n)
                    b = b + value * load(values, n + STRETCH)
                    c = c + value * load(values, n + 2 * STRETCH)
                    e = e + value * load(values, n + 3 * STRETCH)
                for n in range(0, 0 if products else stop, LANES):
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
    """Turn distances ``out`` into weights; see :func:`weights_of`."""
    k, d = len(rows), flat.shape[1]
    seen = np.empty(k)
    for q in range(len(x)):
        mine = out[q]
        heaviest, best = -np.inf, -np.inf
        for j in range(k):
            heaviest = max(heaviest, prior[j])
            mine[j] = prior[j] - gain * mine[j]
            best = max(best, mine[j])
        total = 0.0
        for j in range(k):
            below = mine[j] - best
            seen[j] = np.exp(below) if below > NOTHING else 0.0
            total += seen[j]
        # |d - d'| <= 2 sum_n |x_n - x_in| OFF <= 2 OFF sqrt(D d), of images within 30 of the best,
        # where gain d, the log weight less the logit, is at most heaviest - best + 30.
        rounding = 2 * OFF * np.sqrt(d * gain * (heaviest - best + 30))
        # The true share of an image is at most exp(4 rounding) times the one seen here.
        least = best + np.log(LEAST * total / (rounding + 1e-300)) - 4 * rounding
        largest, again = -np.inf, False
        for j in range(k):
            if mine[j] > least:
                again = True
                mine[j] = prior[j] - gain * _in_float64(flat[rows[j]], x[q], scale, offset)
            largest = max(largest, mine[j])
        log_max[q] = largest
        for j in range(k):
            if again:
                below = mine[j] - largest
                seen[j] = np.exp(below) if below > NOTHING else 0.0
            mine[j] = seen[j]


@njit(nogil=True, cache=True)
def _weighted(rows, weights):  # type: ignore[no-untyped-def]
    """The rows that weigh anything, and their weights (b, rows, filled up to whole ROWS)."""
    some = np.zeros(len(rows), np.bool_)
    for q in range(len(weights)):
        for j in range(len(rows)):
            some[j] |= weights[q, j] != 0
    chosen = rows[some]
    held = np.zeros((len(weights), -(-len(chosen) // ROWS) * ROWS), np.float32)
    for q in range(len(weights)):
        held[q, : len(chosen)] = weights[q][some]
    return chosen, held


@njit(nogil=True, cache=True)
def _add(sums, at, weights, w, values, stop):  # type: ignore[no-untyped-def]
    """Values of ROWS rows, by weights from w on, to a stretch of a query's sums."""
    a, b = spread(weights[w]), spread(weights[w + 1])
    c, e = spread(weights[w + 2]), spread(weights[w + 3])
    for n in range(0, stop, LANES):
        total = load(sums, at + n) + a * load(values, n)
        total = total + b * load(values, n + STRETCH)
        total = total + c * load(values, n + 2 * STRETCH)
        store(sums, at + n, total + e * load(values, n + 3 * STRETCH))


@njit(nogil=True, cache=True)
def _add_squares(sums, at, weights, w, values, stop, means):  # type: ignore[no-untyped-def]
    """The same of squared differences to a query's mean."""
    a, b = spread(weights[w]), spread(weights[w + 1])
    c, e = spread(weights[w + 2]), spread(weights[w + 3])
    for n in range(0, stop, LANES):
        mean = load(means, at + n)
        o = load(values, n) - mean
        p = load(values, n + STRETCH) - mean
        r = load(values, n + 2 * STRETCH) - mean
        s = load(values, n + 3 * STRETCH) - mean
        store(sums, at + n, load(sums, at + n) + (a * o * o + b * p * p) + (c * r * r + e * s * s))


@njit(nogil=True, cache=True)
def _weighted_sums(octets, numbers, rows, weights, scale, offset, means, out):  # type: ignore[no-untyped-def]
    """Sums of values; where there are means (b * padded,) of squared differences to them."""
    d = octets.shape[1]
    padded = -(-d // LANES) * LANES
    sums, values = empty_numbers(len(out) * padded), empty_numbers(ROWS * STRETCH)
    sums[:] = np.float32(0.0)
    each = len(weights) // len(out)
    for first in range(0, each, ROWS):
        for start in range(0, d, STRETCH):
            _convert(octets, numbers, rows, first, start, scale, offset, values)
            stop = min(STRETCH, padded - start)
            for q in range(len(out)):
                w = q * each + first  # to make a slice takes as long as to add
                if weights[w] or weights[w + 1] or weights[w + 2] or weights[w + 3]:
                    at = q * padded + start
                    if len(means):
                        _add_squares(sums, at, weights, w, values, stop, means)
                    else:
                        _add(sums, at, weights, w, values, stop)
    for q in range(len(out)):
        out[q] = sums[q * padded : q * padded + d]


def distances_of(stored: Stored, rows: I64, x: F32) -> F64:
    """As :func:`squared_distances`, of images in memory, on this thread alone."""
    return _compared(stored, rows, x, products=False)


def products_of(stored: Stored, rows: I64, x: F32) -> F64:
    """The sum of x_q x_i over values, for every query and row, (b, k), on this thread alone."""
    return _compared(stored, rows, x, products=True)


def _compared(stored: Stored, rows: I64, x: F32, products: bool) -> F64:
    """Memory is made here: Numba takes seconds to compile what copies arrays into slices."""
    values, out = empty_numbers(ROWS * STRETCH), np.empty((len(x), len(rows)))
    _pairs(*stored.arrays, rows, _padded(x), *stored.scaling, products, values, out)
    return out


def _padded(x: NDArray[np.floating]) -> F32:
    """Rows (b, d) one after the other, zero past their ends."""
    b, d = x.shape
    padded = -(-d // LANES) * LANES
    made: F32 = empty_numbers(b * padded)
    made[:] = 0
    made.reshape(b, padded)[:, :d] = x
    return made


def weights_of(stored: Stored, rows: I64, log_weights: F64, x: F32, gain: float) -> tuple[F64, F64]:
    """The largest logit, (b,), and exp(logit - largest), (b, k), of rows of images in memory.

    A logit is log weight - gain ||x_q - x_i||^2, rounded so little that averages by these weights
    of values of spread 1 are right to 1e-5. On this thread alone.
    """
    weights, log_max = distances_of(stored, rows, x), np.empty(len(x))
    flat, scale, offset = stored.flat, stored.scale, stored.offset
    _weights(flat, rows, log_weights, x, gain, scale, offset, weights, log_max)
    return log_max, weights


def exact_distances(stored: Stored, rows: I64, x: F32) -> F64:
    """||x - x_i||^2 (k,) of one query (D,) in float64, of images in memory, on this thread."""
    return np.array([_in_float64(stored.flat[i], x, stored.scale, stored.offset) for i in rows])


def sums_of(stored: Stored, rows: I64, weights: F64, means: F64 | None = None) -> F64:
    """Sum over rows of weights[q, j] * x_{rows[j]}, (b, D), of images in memory, on this thread.

    With means (b, D) that of weights[q, j] * (x_{rows[j]} - means[q])^2. In float32, so for some
    hundred rows; weights of zero cost nothing.
    """
    out = np.zeros((len(weights), stored.flat.shape[1]))
    chosen, held = _weighted(rows, weights)
    about = NO_NUMBERS if means is None else _padded(means)
    if len(chosen):
        _weighted_sums(*stored.arrays, chosen, held.ravel(), *stored.scaling, about, out)
    return out


def squared_distances(stored: Stored, rows: I64, x: F32) -> F64:
    """||x_q - x_i||^2 for every query and row, (b, k) float64."""
    out = np.empty((len(x), len(rows)))

    def task(start: int) -> None:
        part = slice(start, start + ROWS_PER_TASK)
        with stored.resident(rows[part]) as (here, places):
            out[:, part] = distances_of(here, places, x)

    for_each(task, range(0, len(rows), ROWS_PER_TASK))
    return out
