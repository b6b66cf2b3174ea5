"""The PCA locality masks of Lukoianov et al. 2025, as both released codes compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.store.statistics import Factor
from golddiff.system.numbers import F64, I64
from golddiff.system.parallel import for_each

FLOAT64_BYTES = 1 << 27
FLOAT64_COUNTED = 1024  # values an image; masks that are averaged bear a few entries more or less
HELD_BYTES = 1 << 30  # a larger matrix is made twice, some rows at a time, and never held
ROWS = 128
MANY, EVERY = 16, 5  # of a unit of 16 outputs or more every fifth one's mask is made

# Of how masks are computed: masks that an earlier version kept with a store are recomputed.
VERSION = 2

# Of the threshold: an entry as little below it counts as at it. Of few images entries are ratios of
# small whole numbers, and rounding must not decide of those just at it.
TIE = 1e-7


def precision_of(d: int) -> type[np.floating]:
    """What masks of images of d values are computed in.

    The whole matrix is held: in float64 up to 128 MB, in float32 for larger images.
    """
    return np.float64 if 8 * d * d <= FLOAT64_BYTES else np.float32


def least(threshold: float) -> float:
    """Fraction of max|M| that an entry must reach, ties included."""
    return threshold * (1 - TIE)


def locality_mask(factor: Factor, sigma: float, threshold: float) -> NDArray[np.bool_]:
    """Which input values n weigh in the logits of output value q, (D, D) indexed [n, q].

    W = U diag(L / (L + sigma^2)) U^T; M_nq = W_nq / W_nn (where |W_nn| < 1e-6, divide by 1); the
    mask is |M_nq| >= threshold * max|M|, the maximum taken over the whole matrix; what is equal to
    it but for rounding is in. Normalised by the *input* value n, which the images' hardly varying
    borders make matter. Threshold 0 keeps every value.
    """
    m = factor.wiener_matrix(sigma, precision_of(len(factor.mean)))
    diagonal = np.abs(m.diagonal())
    diagonal[diagonal < 1e-6] = 1.0
    # In place: at 64 x 64 RGB the matrix has 151 million entries.
    np.abs(m, out=m)
    m /= diagonal[:, None]
    mask: NDArray[np.bool_] = m >= least(threshold) * m.max(initial=0.0)
    return mask


def outputs_of(unit: I64) -> I64:
    """The outputs whose masks stand for those of each unit's, ascending.

    Of units of ``MANY`` every fifth of their values: five has no divisor in common with their
    sides, so the pixels lie all over the unit, and on all channels.
    """
    members = np.bincount(unit)
    if members.min() < MANY:
        return np.arange(len(unit))
    order = np.argsort(unit, kind="stable")
    place = np.arange(len(unit)) - np.repeat(np.cumsum(members) - members, members)
    return np.sort(order[place % EVERY == 0])


def unit_counts(
    factor: Factor, sigma: float, thresholds: F64, unit: I64
) -> NDArray[np.unsignedinteger]:
    """How many masks of each unit's outputs hold input n, (T, D, U), a page a threshold.

    The masks are those of :func:`locality_mask` at ascending thresholds (T,), of the outputs that
    :func:`outputs_of` names, the maximum taken over these. ``unit`` (D,) is that of each output.
    """
    d, outputs = len(factor.mean), outputs_of(unit)
    kind = np.float64 if d <= FLOAT64_COUNTED else np.float32
    entries = d * len(outputs)
    is_held = entries * np.dtype(kind).itemsize <= HELD_BYTES
    halves = factor.halves(sigma, kind, entries if is_held else 0)
    matrix: NDArray[Any] | None = np.empty((d, len(outputs)), kind) if is_held else None
    diagonal = np.einsum("nr,nr->n", halves, halves)
    diagonal[diagonal < 1e-6] = 1.0
    right, of_output = halves[outputs].T, unit[outputs]
    members = np.bincount(of_output)
    counts = np.zeros((len(thresholds), d, len(members)), np.min_scalar_type(int(members.max())))
    tops = np.zeros(d, kind)

    def find_tops(start: int) -> None:
        rows = slice(start, start + ROWS)
        made = halves[rows] @ right
        if matrix is not None:
            matrix[rows] = made
        tops[rows] = np.abs(made).max(axis=1) / diagonal[rows]

    for_each(find_tops, range(0, d, ROWS))
    bounds = np.array([least(t) * tops.max(initial=0.0) for t in thresholds.tolist()], kind)
    order = np.argsort(of_output, kind="stable")
    starts = np.cumsum(members) - members

    def count(start: int) -> None:
        rows = slice(start, start + ROWS)
        made = halves[rows] @ right if matrix is None else matrix[rows]
        ratios = np.abs(made) / diagonal[rows, None]
        for page, bound in zip(counts, bounds, strict=True):
            held = (ratios >= bound)[:, order]
            page[rows] = np.add.reduceat(held, starts, axis=1, dtype=counts.dtype)

    for_each(count, range(0, d, ROWS))
    return counts
