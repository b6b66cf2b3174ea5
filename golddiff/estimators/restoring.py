"""Restoration without training: each output's softmax includes the likelihood of a measurement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.attribution import Attribution
from golddiff.denoiser import Denoiser, Estimator, EstimatorSupports
from golddiff.estimators.measurement import EXACT, Measurement
from golddiff.estimators.pca import PCA, Masks
from golddiff.estimators.shared import UnitMasks, advised_share, are_strokes
from golddiff.kernels.contributions import Contribution
from golddiff.kernels.pca_logits import masked_logits
from golddiff.kernels.stored import Stored
from golddiff.noise import Labels, Sigma, precision
from golddiff.posterior import Posterior
from golddiff.store.images import ImageStore
from golddiff.store.posteriors import as_support
from golddiff.support import AnySupport, LogWeights, Prior, Support
from golddiff.supports.paper import PaperSchedule
from golddiff.system.numbers import F32, F64

CLIP_ROUNDS = 8  # at most, of clipping an estimate to [-1, 1] and projecting it again
CLIP_ITERATIONS = 8  # LSQR iterations of each round; only the first projection needs more, for blur
UNIT_SIGMA = math.sqrt(0.5)  # the noise level whose precision is 1
# Mask thresholds for photographs, for fewer than 1,000 of them, and for digits and the like
# (docs/results/restoring.md).
PHOTOGRAPHS, SMALL_STORE, FEW_PHOTOGRAPHS, STROKES = 0.07, 1000, 0.2, 0.01


def for_restoring(store: ImageStore) -> PCA:
    """PCA with the masks that restore best: narrow, as the known values keep pictures coherent.

    No calibration is run. :func:`golddiff.restore` uses it for a store, over golden subsets.
    """
    photographs = FEW_PHOTOGRAPHS if store.n < SMALL_STORE else PHOTOGRAPHS
    threshold = STROKES if are_strokes(store) else photographs
    return PCA(store, threshold, share=advised_share(store.shape))


class Restoring(Estimator):
    """PCA with the likelihood of a measurement in its softmaxes, and outputs projected onto it.

    Args:
        base: the estimator that provides the masks.
        schedule: chooses golden subsets.
        measured: the measurement.
        likelihood: its log likelihood for all images.
        given: the user's denoiser, whose log weights are used.
        softness: standard deviation added in quadrature to sigma when images are compared with x.
    """

    merges = False  # its mean is projected

    def __init__(
        self,
        base: PCA,
        schedule: PaperSchedule,
        measured: Measurement,
        likelihood: LogWeights,
        given: Denoiser,
        softness: float,
    ) -> None:
        super().__init__(base.store, base.memory_limit)
        self.base, self.schedule, self.measured = base, schedule, measured
        self.softness = softness
        self.priors, self.batch = given.priors, given.batch
        self._likelihood = likelihood
        self.seamless, self.n_values = base.seamless, base.n_values

    def __repr__(self) -> str:
        noise = f"noise={self.measured.noise:g}, softness={self.softness:g}"
        return f"Restoring({self.base!r}, {self.schedule!r}, {noise})"

    def make_ready(self, sigma: float) -> tuple[Masks | UnitMasks, F32 | None]:
        """The masks of ``base`` and, for unit masks, the measured values' shares (m, U)."""
        masks, shares = self.base.ready(sigma), self.measured.operator.shares
        return masks, shares.T @ masks.shares if isinstance(masks, UnitMasks) else None

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """The means (b, D) over golden subsets, projected onto the measurement."""
        return self._projected(super().denoise(x, sigma, prior)).astype(np.float32)

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """The nearest images under noise and measurement, with the user's log weights only."""
        combined, log_weights = self._likelihood, np.zeros(self.store.n)
        if isinstance(prior, LogWeights):
            combined, log_weights = LogWeights.of(combined.values + prior.values), prior.values
        elif prior is not None:
            combined = combined.of_class(prior, self.store.rows_of(prior))
        total_sigma = math.hypot(sigma, self.softness)
        supports = self.schedule.supports(self.store, x, total_sigma, combined, 0)
        return self, [Support(support.rows, log_weights[support.rows]) for support in supports]

    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a part."""
        terms = (next(self.contributions(query, sigma, part)) for query in x)
        posteriors = [Posterior.of_logits(term.logits, term.values) for term in terms]
        return Posterior.of_queries(posteriors, range(len(x)))

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,); see the base class."""
        for part in as_support(support).split(self.part_size):
            values = self.images.values(part.rows)
            logits = self._logits(values, x, sigma) + part.log_importance()
            yield Contribution(part.rows, logits, self.base.summands(values))

    def attribute(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None, top: int = 16
    ) -> list[Attribution]:
        """The sources of the means; ``total`` is projected like the output."""
        attributions = super().attribute(x, sigma, labels, top)
        return [replace(a, total=self._projected(a.total[None])[0]) for a in attributions]

    def working_bytes(self, images: int) -> tuple[int, int]:
        """A part's images and logits, and a posterior of each query; see the base class."""
        rows = min(images, self.part_size)
        return 4 * (18 * self.images.d + self.n_values) * rows, 24 * self.n_values

    def _logits(self, values: F32, x: F32, sigma: float) -> F64:
        """One query's logits (L, k), with both terms summed over the same masks."""
        (masks, weights), penalties = self.ready(sigma), self.measured.penalties(values)
        gain = np.float32(precision(math.hypot(sigma, self.softness)))
        terms = np.square(values - x) * gain
        if isinstance(masks, UnitMasks):
            of_units = terms @ masks.shares + penalties @ weights
            return -masks.at_pixels(of_units).T.astype(np.float64)
        terms += (self.measured.operator.shares @ penalties.T).T
        rows, zeros = np.arange(len(terms)), np.zeros_like(x)
        return masked_logits(Stored(np.sqrt(terms)), rows, zeros, UNIT_SIGMA, masks.tree)

    def _projected(self, means: NDArray[np.floating[Any]]) -> F64:
        projected = self.measured.project_smoothly(means)
        for _ in range(CLIP_ROUNDS if self.store.is_pixels else 0):
            clipped = projected.clip(-1, 1)
            if np.abs(clipped - projected).max() <= EXACT:
                break
            projected = self.measured.project(clipped, CLIP_ITERATIONS)
        return projected.clip(-1, 1) if self.store.is_pixels else projected
