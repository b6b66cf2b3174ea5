"""The nearest training image as a denoiser: the baseline that copies."""

from __future__ import annotations

import math

import numpy as np

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.optimal import Optimal
from golddiff.store.nearest import Pixels
from golddiff.store.posteriors import whole
from golddiff.support import AnySupport, Prior, Support
from golddiff.system.numbers import F32, I64

CANDIDATES = 8  # that are compared again
ROUNDING = 1e-5  # relative, of a length in the search's float32; and of each value


class NearestImage(Denoiser):
    """D(x) = argmin over x_i of ||x / sqrt(1 + sigma^2) - x_i||, of equals the first row.

    Exact: distances that float32 cannot tell apart are compared again, as correctly rounded sums.
    Source: the baseline of Lukoianov et al. 2025, in the coordinates of VP as theirs.

    Args:
        store: the training set.
    """

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """The nearest images (b, D) of queries (b, D)."""
        values: F32 = self.store.values(self.nearest(x, sigma, prior))
        return values

    def nearest(self, x: F32, sigma: float, prior: Prior) -> I64:
        """The rows (b,) of the nearest images of queries (b, D)."""
        scaled = x.astype(np.float64) / math.sqrt(1 + sigma**2)
        everything, rows = self.store.everything(prior), np.full(len(x), -1)
        count = CANDIDATES
        while (open_ := np.flatnonzero(rows < 0)).size:
            some = scaled[open_]
            found = self.store.nearest(some.astype(np.float32), count, Pixels(), everything)
            for query, q, support in zip(open_, some, found, strict=True):
                near = whole(support).rows
                squares = np.square(q - self.store.values(near))
                sums = np.array([math.fsum(row) for row in squares])
                nearest, furthest = math.sqrt(sums.min()), math.sqrt(sums.max())
                # All others are further than the furthest of these, but for rounding.
                off = ROUNDING * (furthest + math.sqrt(len(q)))
                if nearest + off < furthest or len(near) == len(everything):
                    rows[query] = near[sums.argmin()]
            count *= 8
        return rows

    def estimator_supports(
        self, x: F32, sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """One image is the whole support, and has all the weight."""
        optimal = Optimal(self.store)
        return [(optimal, Support(row[None])) for row in self.nearest(x, sigma, prior)]
