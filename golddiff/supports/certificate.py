"""A rigorous bound on what a golden subset leaves out, for ``Optimal``, from Theorem 1's argument.

With S the images weighed and Z_S, Z_out the sums of exp(-||x - x_i||^2 / (2 sigma^2)) over S and
over all others,

    f_S - f = Z_out / (Z_S + Z_out) (f_S - f_out),   ||f_S - f_out|| <= R + ||f_S||,

with R the largest norm of an image (paper, Theorem 1).
Z_S is computed. Z_out is bounded from above: no image is nearer than
:mod:`golddiff.supports.index.bounds` allows. Where the query is so noisy that nearly all of its
length is noise, these bounds say little, and a guaranteed error takes nearly all images: there a
proof costs what a full scan costs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from golddiff.kernels.lowest import lowest
from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.supports.index.bounds import least_squares
from golddiff.supports.index.image_index import Index
from golddiff.system.numbers import F32, F64, I64

IMAGES_AT_ONCE = 512
STARTED_WITH = 32  # images of a proof, where none are given
NO_ROWS = np.empty(0, np.int64)
ROUNDING = 4e-15  # of a squared length summed in float64, relative
LOWEST = 745.0  # nats below the largest, exp gives 0


@dataclass(frozen=True)
class Certified:
    """A posterior mean and what is proved of it."""

    mean: F64  # (D,) float64, over ``rows``
    bound: float  # the full scan's posterior mean is not further away, in Euclidean distance
    rows: I64  # ascending images that were weighed


def certify(
    index: Index,
    x: F32,
    sigma: float,
    rows: I64 = NO_ROWS,
    label: int | None = None,
    most: float = np.inf,
    enough: float = np.inf,
) -> Certified:
    """The posterior mean of ``Optimal`` at a query (D,) over at least some images, and its bound.

    Of the class's images those that may weigh most follow, each time as many as there are, until
    the bound is at most ``most``; it may come out larger where not even all images give it in
    float64, or where more than ``enough`` images do not.
    """
    index.check_contents()
    store, gain = index.store, precision(sigma)
    weighed = _Sums(store, x, gain)
    weighed.add(np.unique(rows))
    left = np.setdiff1d(store.rows_of(label), weighed.rows(), assume_unique=True)
    logits = -gain * least_squares(index, x, left)
    while True:
        bound = weighed.bound(_log_sum(logits))
        if bound <= most or len(left) == 0 or len(weighed.rows()) > enough:
            return Certified(weighed.mean(), bound, weighed.rows())
        heavy = lowest((-logits).astype(np.float32), max(STARTED_WITH, len(weighed.rows())))
        weighed.add(left[heavy])
        left, logits = np.delete(left, heavy), np.delete(logits, heavy)


def _log_sum(logits: F64) -> float:
    """Log of the sum of exp; -inf of nothing."""
    highest = float(logits.max(initial=-np.inf))
    if highest == -np.inf:
        return highest
    return highest + float(np.log(np.exp(logits - highest).sum()))


class _Sums:
    """The posterior over the images weighed so far, in float64."""

    def __init__(self, store: ImageStore, x: F32, gain: float) -> None:
        self._store, self._x, self._gain = store, x.astype(np.float64), gain
        self._rows: list[I64] = []
        self._furthest = 0.0  # squared, of those that weigh anything
        self._posterior = Posterior.empty(1, 1, store.d)

    def add(self, rows: I64) -> None:
        """Weigh some more images."""
        self._rows.append(rows)
        for i in range(0, len(rows), IMAGES_AT_ONCE):
            values = self._store.values(rows[i : i + IMAGES_AT_ONCE]).astype(np.float64)
            squares = ((values - self._x) ** 2).sum(axis=1)
            logits = -self._gain * squares
            top = max(self._posterior.log_max.item(), float(logits.max()))
            seen = squares[logits >= top - LOWEST]
            self._furthest = max(self._furthest, float(seen.max(initial=0.0)))
            weights = np.exp(logits - top)
            sums = np.array([[top]]), np.array([[weights.sum()]]), (weights @ values)[None]
            self._posterior.add(Posterior(*sums))

    def rows(self) -> I64:
        """The images weighed, ascending."""
        return np.sort(np.concatenate(self._rows))

    def mean(self) -> F64:
        """Their posterior mean."""
        mean: F64 = self._posterior.mean()[0]
        return mean

    def bound(self, log_out: float) -> float:
        """2R Z_out / Z with ||f_S|| for one R, and what rounding may add; from log Z_out."""
        top, total = self._posterior.log_max.item(), self._posterior.total.item()
        if not total:
            return np.inf
        reach = self._store.radius * (1 + 1e-6) + float(np.linalg.norm(self.mean()))
        # A logit's own rounding moves weights by that factor at most.
        blur = ROUNDING * (1 + self._gain * self._furthest)
        ratio = log_out - (top + np.log(total)) + 2 * blur
        share = 1.0 if ratio > 50 else float(np.exp(ratio) / (1 + np.exp(ratio)))
        return reach * (share + 2 * min(1.0, blur))
