"""Wiener: the posterior mean under one Gaussian, which needs no images (paper, baselines)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.gaussians import Gaussian, GaussiansPosterior
from golddiff.support import LogWeights, Prior


class Wiener(Denoiser):
    """D(x) = mu + C (C + sigma^2 I)^-1 (x - mu), C the unbiased covariance of the images.

    With ``labels`` the mean and covariance are those of the class: the posterior mean under the
    Gaussian fitted to it. Source: Wiener 1949; Lukoianov et al. 2025, Sec. 3.
    """

    def denoise(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> NDArray[np.float32]:
        """Filter queries (b, D) in the covariance's eigenbasis, in float64."""
        assert not isinstance(prior, LogWeights)  # given() refuses them
        factor = self.store.factor(prior)
        coefficients = (x - factor.mean) @ factor.eigenvectors
        shrunk = (coefficients * factor.shrinkage(sigma)) @ factor.eigenvectors.T
        filtered: NDArray[np.float32] = (factor.mean + shrunk).astype(np.float32)
        return filtered

    def exact(self, x: NDArray[np.float32], sigma: float, prior: Prior) -> GaussiansPosterior:
        """The posterior of queries (b, D) under the one Gaussian."""
        assert not isinstance(prior, LogWeights)
        factor = self.store.factor(prior)
        one = Gaussian(0.0, factor.mean, factor.eigenvalues, factor.eigenvectors)
        return GaussiansPosterior(lambda: iter([one]), x, sigma)
