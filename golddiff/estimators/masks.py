"""The PCA locality masks of Lukoianov et al. 2025, as both released codes compute them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.store.statistics import Factor

FLOAT64_BYTES = 1 << 27

# Of how masks are computed: masks that an earlier version kept with a store are made again.
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
