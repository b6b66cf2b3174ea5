"""The PCA locality masks of Lukoianov et al. 2025, as both released codes compute them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.statistics import Factor


def locality_mask(factor: Factor, sigma: float, threshold: float) -> NDArray[np.bool_]:
    """Which input values n weigh in the logits of output value q, (D, D) indexed [n, q].

    W = U diag(L / (L + sigma^2)) U^T; M_nq = W_nq / W_nn (where |W_nn| < 1e-6, divide by 1); the
    mask is |M_nq| >= threshold * max|M|, the maximum taken over the whole matrix. Normalised by
    the *input* value n, which the images' hardly varying borders make matter. Threshold 0 keeps
    every value.
    """
    w = factor.wiener_matrix(sigma)
    diagonal = w.diagonal().copy()
    diagonal[np.abs(diagonal) < 1e-6] = 1.0
    w /= diagonal[:, None]
    np.abs(w, out=w)
    mask: NDArray[np.bool_] = w >= threshold * w.max(initial=0.0)
    return mask
