"""The paper's Theorem 1: a bound on the error of a posterior mean over the top k images.

With logits sorted l_(1) >= ... >= l_(N), weights w_i = exp(l_i) / Z, Z = sum_j exp(l_j), and S the
first k, the two means differ by

    f_S - f_D = (Z_tail / Z) (f_S - f_tail),    Z_tail = sum over i outside S of exp(l_i),

where f_tail is the weighted mean of the omitted images. Both means lie in the ball of radius
R = max_i ||x_i||, so ||f_S - f_D|| <= 2 R Z_tail / Z (:func:`tail_bound`). Each of the N - k terms
of Z_tail is at most exp(l_(k+1)) and Z is at least exp(l_(1)), which gives the paper's looser
bound, 2 R (N - k) exp(-(l_(1) - l_(k+1))) (:func:`truncation_bound`).
"""

from __future__ import annotations

import numpy as np

from golddiff.system.numbers import F64


def truncation_bound(logits: F64, k: int, radius: float) -> float:
    """The paper's Theorem 1: 2 R (N - k) exp(-Delta_k), Delta_k = l_(1) - l_(k+1).

    Args:
        logits: (N,) log weights up to a constant, largest first.
        k: number of images kept, 1 to N.
        radius: R, the largest Euclidean norm of an image.

    Returns:
        A bound on ||f_S - f_D||_2 in the units of ``radius``; 0 for k = N.
    """
    n = len(logits)
    return 0.0 if k == n else float(2 * radius * (n - k) * np.exp(logits[k] - logits[0]))


def tail_bound(logits: F64, k: int, radius: float) -> float:
    """The tighter bound 2 R Z_tail / Z, which depends on every logit.

    Arguments and result are those of :func:`truncation_bound`.
    """
    weights = np.exp(logits - logits[0])
    return float(2 * radius * weights[k:].sum() / weights.sum())
