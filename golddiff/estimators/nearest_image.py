"""The nearest training image as a denoiser: a baseline that copies."""

from __future__ import annotations

import math

import numpy as np

from golddiff.denoiser import Denoiser, EstimatorSupports
from golddiff.estimators.optimal import Optimal
from golddiff.store.nearest import Pixels
from golddiff.store.posteriors import as_support
from golddiff.support import Prior, Support
from golddiff.system.numbers import F32, I64

CANDIDATES = 8  # nearest images in float32 whose distances are recomputed exactly
ROUNDING = 1e-5  # relative error of a length in the float32 search, and absolute one of each value


class NearestImage(Denoiser):
    """D(x) = argmin over x_i of ||x / sqrt(1 + sigma^2) - x_i||; ties go to the lower row.

    Exact: distances that float32 cannot distinguish are recomputed as correctly rounded sums.
    Source: the baseline of Lukoianov et al. 2025, in VP coordinates as there.

    Args:
        store: the training set.
    """

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """The nearest images (b, D) of queries (b, D)."""
        return self.store.values(self.nearest(x, sigma, prior))

    def nearest(self, x: F32, sigma: float, prior: Prior) -> I64:
        """The rows (b,) of the nearest images of queries (b, D)."""
        scaled = x.astype(np.float64) / math.sqrt(1 + sigma**2)
        everything, rows = self.store.everything(prior), np.full(len(x), -1)
        count = CANDIDATES
        while (unresolved := np.flatnonzero(rows < 0)).size:
            points = scaled[unresolved]
            supports = self.store.nearest(points.astype(np.float32), count, Pixels(), everything)
            for query, point, support in zip(unresolved, points, supports, strict=True):
                candidates = as_support(support).rows
                squares = np.square(point - self.store.values(candidates))
                sums = np.array([math.fsum(row) for row in squares])
                smallest, largest = math.sqrt(sums.min()), math.sqrt(sums.max())
                # Up to rounding, all other images are farther than the farthest candidate.
                tolerance = ROUNDING * (largest + math.sqrt(len(point)))
                if smallest + tolerance < largest or len(candidates) == len(everything):
                    rows[query] = candidates[sums.argmin()]
            count *= 8
        return rows

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """Optimal over a support of one image, the nearest, which has all the weight."""
        return Optimal(self.store), [Support(row[None]) for row in self.nearest(x, sigma, prior)]
