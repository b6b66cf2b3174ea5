"""The PCA locality masks of Lukoianov et al. 2025, as both released codes compute them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.statistics import Factor

BLOCK_BYTES = 1 << 27


def locality_mask(factor: Factor, sigma: float, threshold: float) -> NDArray[np.bool_]:
    """Which input values n weigh in the logits of output value q, (D, D) indexed [n, q].

    W = U diag(L / (L + sigma^2)) U^T; M_nq = W_nq / W_nn (where |W_nn| < 1e-6, divide by 1); the
    mask is |M_nq| >= threshold * max|M|, the maximum taken over the whole matrix. Normalised by
    the *input* value n, which the images' hardly varying borders make matter. Threshold 0 keeps
    every value.
    """
    d = len(factor.mean)
    gains = factor.shrinkage(sigma)
    diagonal = np.einsum("nr,nr,r->n", factor.eigenvectors, factor.eigenvectors, gains)
    diagonal[np.abs(diagonal) < 1e-6] = 1.0

    def rows_of_m(start: int) -> NDArray[np.float64]:
        part = slice(start, start + step)
        w = (factor.eigenvectors[part] * gains) @ factor.eigenvectors.T
        w /= diagonal[part, None]
        return np.abs(w, out=w)

    step = max(1, BLOCK_BYTES // (8 * d))
    if step >= d:
        m = rows_of_m(0)
        mask: NDArray[np.bool_] = m >= threshold * m.max(initial=0.0)
        return mask
    # Large images: M is computed twice, a block of rows at a time, rather than held.
    largest = max(rows_of_m(start).max() for start in range(0, d, step))
    mask = np.empty((d, d), np.bool_)
    for start in range(0, d, step):
        np.greater_equal(rows_of_m(start), threshold * largest, out=mask[start : start + step])
    return mask
