"""A rigorous error bound for golden subsets of ``Optimal``, by the argument of Theorem 1.

Let S be the images weighed, and Z_S and Z_out the sums of exp(-||x - x_i||^2 / (2 sigma^2)) over S
and over all other images. Then

    f_S - f = Z_out / (Z_S + Z_out) (f_S - f_out),   ||f_S - f_out|| <= R + ||f_S||,

with R the largest norm of an image (paper, Theorem 1). Z_S is computed. Z_out is bounded from above
by lower bounds on distances. At high noise these bounds are loose, and a proof needs nearly all
images, at the cost of a full scan.

The lower bounds are from the index alone. With P the orthonormal projection on all blocks and Q the
projection on its complement,

    ||x - x_i||^2 = ||P x - P x_i||^2 + ||Q x - Q x_i||^2.

By the triangle inequality, the root of the first term is at least the distance to the quantized
coefficients minus the quantization errors, and the root of the second at least the difference of
the lengths of Q x and Q x_i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from golddiff.kernels.byte_distances import QuantizedQueries
from golddiff.kernels.contributions import log_sum_exp
from golddiff.kernels.lowest import lowest
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.supports.index.distances import IndexedNumbers
from golddiff.supports.index.image_index import Index
from golddiff.system.numbers import F32, F64, I64

IMAGES_AT_ONCE = 512
FIRST_IMAGES = 32  # number of images in the first round, unless rows are given
NO_ROWS = np.empty(0, np.int64)
FLOAT32_ROUNDING = 2e-5  # largest relative error of a sum of float32 numbers
ROUNDING = 4e-15  # relative rounding error of a squared length summed in float64
UNDERFLOW = 745.0  # exp is 0 for logits this many nats below the largest


@dataclass(frozen=True)
class Certified:
    """A posterior mean with a proved error bound."""

    mean: F64  # (D,) posterior mean over ``rows``
    bound: float  # upper bound on the Euclidean distance to the full scan's posterior mean
    rows: I64  # ascending rows of the images weighed


def certify(
    index: Index,
    x: F32,
    sigma: float,
    rows: I64 = NO_ROWS,
    label: int | None = None,
    most: float = np.inf,
    enough: float = np.inf,
) -> Certified:
    """The posterior mean of ``Optimal`` at a query (D,), over at least ``rows``, and its bound.

    Each round doubles the images, adding those of the class with the largest possible weights,
    until the bound is at most ``most``. It gives up, with a bound above ``most``, after more than
    ``enough`` images. Over all images the bound is float64's rounding.
    """
    index.check_contents()
    store, gain = index.store, precision(sigma)
    weighed = _Sums(store, x, gain)
    weighed.add(rows)
    left = np.setdiff1d(store.rows_of(label), weighed.rows, assume_unique=True)
    logits = -gain * least_squares(index, x, left)
    while True:
        bound = weighed.bound(float(log_sum_exp(logits)) if len(left) else -np.inf)
        if bound <= most or len(left) == 0 or len(weighed.rows) > enough:
            return Certified(weighed.posterior.mean()[0], bound, weighed.rows)
        heavy = lowest((-logits).astype(np.float32), max(FIRST_IMAGES, len(weighed.rows)))
        weighed.add(left[heavy])
        left, logits = np.delete(left, heavy), np.delete(logits, heavy)


def least_squares(index: Index, x: F32, rows: I64) -> F64:
    """Lower bounds (n,) on the squared distances of images (n,) to a query (D,)."""
    store = index.store
    distances = IndexedNumbers(index).distances(store, x[None], rows)[0, 0]
    projected = index.blocks.project(x[None])
    z = projected[0].astype(np.float64)
    query_error = float(np.linalg.norm(z - QuantizedQueries.of(projected).values[0]))
    squared = float(x.astype(np.float64) @ x)
    slack = FLOAT32_ROUNDING * (float(np.sqrt(squared)) + store.radius)
    residual = squared - float(z @ z)
    low, high = (np.sqrt(max(0.0, residual + s * FLOAT32_ROUNDING * squared)) for s in (-1, 1))
    rest, error = index.lengths[rows].astype(np.float64).T
    # rest^2 is a difference of two squares, each known to FLOAT32_ROUNDING of the largest.
    shift = FLOAT32_ROUNDING * store.radius**2
    gap = np.maximum(np.sqrt((rest**2 - shift).clip(0)) - high, low - np.sqrt(rest**2 + shift))
    apart = np.sqrt(distances.astype(np.float64)) - error - query_error
    return np.maximum(apart - slack, 0.0) ** 2 + np.maximum(gap - slack, 0.0) ** 2


class _Sums:
    """The posterior over the images weighed so far, in float64."""

    def __init__(self, store: ImageStore, x: F32, gain: float) -> None:
        self._store, self._x, self._gain = store, x.astype(np.float64), gain
        self.rows = NO_ROWS  # of the images weighed, ascending
        self.posterior = Posterior.empty(1, 1, store.d)
        self._furthest = 0.0  # largest squared distance of an image with nonzero weight

    def add(self, rows: I64) -> None:
        """Weigh more images."""
        self.rows = np.union1d(self.rows, rows)
        for i in range(0, len(rows), IMAGES_AT_ONCE):
            values = self._store.values(rows[i : i + IMAGES_AT_ONCE]).astype(np.float64)
            squares = ((values - self._x) ** 2).sum(axis=1)
            logits = -self._gain * squares
            top = max(self.posterior.log_max.item(), float(logits.max()))
            weighty = squares[logits >= top - UNDERFLOW]
            self._furthest = max(self._furthest, float(weighty.max(initial=0.0)))
            self.posterior.add(Posterior.of_logits(logits[None], values))

    def bound(self, log_out: float) -> float:
        """(R + ||f_S||) Z_out / Z plus a margin for rounding, given log Z_out."""
        top, total = self.posterior.log_max.item(), self.posterior.total.item()
        if not total:
            return np.inf
        diameter = self._store.radius + float(np.linalg.norm(self.posterior.mean()))
        # Largest relative error of a weight caused by rounding its logit.
        rounding = ROUNDING * (1 + self._gain * self._furthest)
        log_ratio = log_out - (top + np.log(total)) + 2 * rounding
        share = 1.0 if log_ratio > 50 else float(np.exp(log_ratio) / (1 + np.exp(log_ratio)))
        return diameter * (share + 2 * min(1.0, rounding))
