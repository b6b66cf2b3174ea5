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


class NearestImage(Denoiser):
    """D(x) = argmin over x_i of ||x / sqrt(1 + sigma^2) - x_i||; ties go to the lower row.

    Source: the baseline of Lukoianov et al. 2025, in VP coordinates as there.

    Args:
        store: the training set.
    """

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """The nearest images (b, D) of queries (b, D)."""
        values: F32 = self.store.values(self.nearest(x, sigma, prior))
        return values

    def nearest(self, x: F32, sigma: float, prior: Prior) -> I64:
        """The rows (b,) of the nearest images of queries (b, D)."""
        scaled = (x.astype(np.float64) / math.sqrt(1 + sigma**2)).astype(np.float32)
        supports = self.store.nearest(scaled, 1, Pixels(), self.store.everything(prior))
        return np.array([as_support(support).rows[0] for support in supports], np.int64)

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """Optimal over a support of one image, the nearest, which has all the weight."""
        return Optimal(self.store), [Support(row[None]) for row in self.nearest(x, sigma, prior)]
