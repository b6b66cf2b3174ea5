"""Wiener: the posterior mean under one Gaussian, a baseline that weighs no images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from golddiff.estimators.gaussians import Gaussian, GaussianDenoiser
from golddiff.system.numbers import F32


class Wiener(GaussianDenoiser):
    """D(x) = mu + C (C + sigma^2 I)^-1 (x - mu), C the unbiased covariance of the images.

    With ``labels`` the mean mu and covariance are those of the class.
    Source: Wiener 1949; Lukoianov et al. 2025, Sec. 3.

    Args:
        store: the training set.
    """

    def denoise(self, x: F32, sigma: float, prior: Any) -> F32:
        """Filter queries (b, D) in the covariance's eigenbasis, in float64."""
        factor = self.store.factor(prior)
        coefficients = (x - factor.mean) @ factor.eigenvectors
        shrunk = (coefficients * factor.shrinkage(sigma)) @ factor.eigenvectors.T
        filtered: F32 = (factor.mean + shrunk).astype(np.float32)
        return filtered

    def gaussians(self, prior: Any) -> Iterator[Gaussian]:
        """The single Gaussian of all images or of a class."""
        factor = self.store.factor(prior)
        yield Gaussian(0.0, factor.mean, factor.eigenvalues, factor.eigenvectors)
