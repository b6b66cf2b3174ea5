"""Wiener: the posterior mean under one Gaussian, a baseline that weighs no images."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from golddiff.estimators.gaussians import Gaussian, GaussianDenoiser


class Wiener(GaussianDenoiser):
    """D(x) = mu + C (C + sigma^2 I)^-1 (x - mu), C the unbiased covariance of the images.

    With ``labels`` the mean mu and covariance are those of the class.
    Source: Wiener 1949; Lukoianov et al. 2025, Sec. 3.

    Args:
        store: the training set.
    """

    def gaussians(self, prior: Any) -> Iterator[Gaussian]:
        """The single Gaussian of all images or of a class."""
        factor = self.store.factor(prior)
        yield Gaussian(0.0, factor.mean, factor.eigenvalues, factor.eigenvectors)
