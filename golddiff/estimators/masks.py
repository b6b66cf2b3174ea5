"""The PCA locality masks of Lukoianov et al. 2025, as both released codes compute them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from golddiff.store.statistics import Factor
from golddiff.system.memory import free_memory, require_memory
from golddiff.system.numbers import F64, I64
from golddiff.system.parallel import for_each

FLOAT64_BYTES = 1 << 27  # largest float64 Wiener matrix; beyond it, masks are computed in float32
FLOAT64_COUNTED = 1024  # most values per image for averaged masks in float64; they bear rounding
# A larger matrix, or one of more than a quarter of the free memory, is computed twice, by rows.
HELD_BYTES = 1 << 32
ROWS = 128
# Units of 16 outputs or more use the masks of every fifth output; above 64 x 64 RGB, where masks
# take minutes, those of every thirteenth.
MANY, EVERY, LARGE, EVERY_OF_LARGE = 16, 5, 3 * 64**2, 13

# Version of the mask code: masks that an earlier version saved with a store are recomputed.
VERSION = 2

# Relative tolerance of the threshold. With few images, entries are ratios of small integers, and
# rounding must not decide whether entries equal to the threshold are in the mask.
TIE = 1e-7


def precision_of(d: int) -> type[np.floating]:
    """The dtype to compute masks of d values in: float64 up to a matrix of 128 MB, else float32."""
    return np.float64 if 8 * d * d <= FLOAT64_BYTES else np.float32


def least(threshold: float) -> float:
    """Fraction of max|M| that an entry must reach, less the tolerance for ties."""
    return threshold * (1 - TIE)


def locality_mask(factor: Factor, sigma: float, threshold: float) -> NDArray[np.bool_]:
    """Which input values n enter the logits of output value q, bool (D, D) indexed [n, q].

    W = U diag(L / (L + sigma^2)) U^T; M_nq = W_nq / W_nn (if |W_nn| < 1e-6, divide by 1); the mask
    is |M_nq| >= threshold * max|M|, with the maximum over the whole matrix and with ties up to
    rounding included. M is normalised by the *input* value n, which matters for images whose
    border hardly varies. Threshold 0 keeps every value.
    """
    m = factor.wiener_matrix(sigma, precision_of(len(factor.mean)))
    diagonal = np.abs(m.diagonal())
    diagonal[diagonal < 1e-6] = 1.0
    # In place, because at 64 x 64 RGB the matrix has 151 million entries.
    np.abs(m, out=m)
    m /= diagonal[:, None]
    mask: NDArray[np.bool_] = m >= least(threshold) * m.max(initial=0.0)
    return mask


def outputs_of(unit: I64) -> I64:
    """The outputs whose masks represent their unit, those of a unit side by side.

    All outputs, or every fifth (every thirteenth of ``LARGE`` images) if units have ``MANY`` or
    more: both are coprime to the units' sides, so the selected values are spread over all pixels
    and channels of a unit.
    """
    members = np.bincount(unit)
    order: I64 = np.argsort(unit, kind="stable")
    if members.min() < MANY:
        return order
    position = np.arange(len(unit)) - np.repeat(np.cumsum(members) - members, members)
    every = EVERY if len(unit) <= LARGE else EVERY_OF_LARGE
    chosen: I64 = order[position % every == 0]
    return chosen


def unit_counts(
    factor: Factor, sigma: float, thresholds: F64, unit: I64
) -> NDArray[np.unsignedinteger]:
    """The number of masks in each unit that contain input n, (T, D, U), one page per threshold.

    The masks are those of :func:`locality_mask` at ascending thresholds (T,), for the outputs that
    :func:`outputs_of` selects, with max|M| over these. ``unit`` (D,) is the unit of each output.
    """
    d, outputs = len(factor.mean), outputs_of(unit)
    members = np.bincount(unit[outputs])
    # The counts, and the shares (D, U) of one threshold in float32.
    needed = (len(thresholds) + 4) * d * len(members)
    require_memory(needed, f"the masks of images of {d:,} values", "use smaller images")
    dtype = np.float64 if d <= FLOAT64_COUNTED else np.float32
    entries = d * len(outputs)
    is_held = entries * np.dtype(dtype).itemsize <= min(HELD_BYTES, free_memory() / 4)
    halves = factor.halves(sigma, dtype, entries if is_held else 0)
    matrix: NDArray[Any] | None = np.empty((d, len(outputs)), dtype) if is_held else None
    diagonal = np.einsum("nr,nr->n", halves, halves)
    diagonal[diagonal < 1e-6] = 1.0
    right = halves[outputs].T
    counts = np.zeros((len(thresholds), d, len(members)), np.min_scalar_type(int(members.max())))
    row_max = np.zeros(d, dtype)

    def find_row_max(start: int) -> None:
        rows = slice(start, start + ROWS)
        products = halves[rows] @ right
        if matrix is not None:
            matrix[rows] = products
        row_max[rows] = np.abs(products).max(axis=1) / diagonal[rows]

    for_each(find_row_max, range(0, d, ROWS))
    bounds = np.array([least(t) * row_max.max(initial=0.0) for t in thresholds.tolist()], dtype)
    starts = np.cumsum(members) - members

    def count(start: int) -> None:
        rows = slice(start, start + ROWS)
        products = halves[rows] @ right if matrix is None else matrix[rows]
        ratios = np.abs(products) / diagonal[rows, None]
        for page, bound in zip(counts, bounds, strict=True):
            page[rows] = np.add.reduceat(ratios >= bound, starts, axis=1, dtype=counts.dtype)

    for_each(count, range(0, d, ROWS))
    return counts
