"""SCFDM: a smoothed closed-form denoiser that no longer returns training images."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from golddiff.denoiser import DEFAULT_MEMORY_LIMIT
from golddiff.estimators.optimal import Optimal
from golddiff.kernels.contributions import Contribution, mixed, values_at
from golddiff.noise import seed_of_sigma
from golddiff.store.images import StoreOrPath
from golddiff.store.posteriors import as_support
from golddiff.store.training_set import TrainingSet
from golddiff.support import AnySupport, Prior, Supports, per_query
from golddiff.supports.adaptive import AdaptiveSchedule, FittedSchedule, QueryResult
from golddiff.system.arguments import check_not_negative
from golddiff.system.numbers import F32, check_count, check_seed

BYTES_PER_VALUE = 64  # working memory per value of a copy: its query, posterior and mean


class OverCopies(FittedSchedule):
    """An adaptive schedule for the noisy copies of each query."""

    def __init__(self, smoothed: SCFDM, settings: AdaptiveSchedule) -> None:
        super().__init__(Optimal(smoothed.store, smoothed.memory_limit), settings)
        self._smoothed = smoothed

    def results(self, x: F32, sigma: float, prior: Prior, seed: int) -> list[QueryResult]:
        """The averages of the copies' means and of their errors, which bound the mean's error."""
        of_all = super().results(self._smoothed.noisy(x, sigma), sigma, prior, seed)
        averages, everything = [], self.estimator.store.everything(prior)
        for query in range(len(x)):
            copies = of_all[query :: len(x)]
            mean = np.mean([copy.mean for copy in copies], axis=0)
            error = float(np.mean([copy.error for copy in copies]))
            averages.append(QueryResult(mean, error, everything))
        return averages

    def supports(
        self, store: TrainingSet, x: F32, sigma: float, label: Prior, seed: int
    ) -> Sequence[AnySupport]:
        """All images, which attribution weighs."""
        return [store.everything(label)] * len(x)


class SCFDM(Optimal):
    """D(x) = 1/M sum_m Optimal(x + s sqrt(1 + sigma^2) eps_m), with eps_m ~ N(0, I).

    As sigma falls, each noisy copy converges to a training image, and D(x) to the mean of up to M
    training images near x. All copies of a query share one support. The smoothing s is in VP
    coordinates, x / sqrt(1 + sigma^2). All queries of a noise level share the same noise.

    Args:
        store: the training set.
        smoothing: s >= 0 in units of x0; 0 gives Optimal.
        copies: M.
        seed: seed of the copies' noise.
        memory_limit: see :class:`golddiff.denoiser.Estimator`.

    Raises:
        ArgumentError: smoothing is negative or not finite, copies is below 1, or seed is invalid.

    Source: the smoothed score of Scarvelis, Borde & Solomon 2023, "Closed-form diffusion models";
    units and defaults from Lukoianov et al. (except their s = 1 for MNIST).
    """

    merges = joint = False  # a mean of posterior means
    fitted_schedule = OverCopies

    def __init__(
        self,
        store: StoreOrPath,
        smoothing: float = 0.1,
        copies: int = 10,
        seed: int = 0,
        memory_limit: float = DEFAULT_MEMORY_LIMIT,
    ) -> None:
        super().__init__(store, memory_limit)
        self.smoothing = check_not_negative("smoothing", smoothing)
        self.copies, self.seed = check_count("copies", copies), check_seed(seed)

    def noise(self, sigma: float) -> F32:
        """The standard normal noise (M, D) of the copies at a noise level."""
        generator = np.random.default_rng((self.seed, seed_of_sigma(sigma)))
        return generator.standard_normal((self.copies, self.images.d), np.float32)

    def noisy(self, x: F32, sigma: float) -> F32:
        """The noisy copies (M * b, D) of queries (b, D), ordered by copy, then query."""
        noise = np.float32(self.smoothing * math.hypot(1, sigma)) * self.noise(sigma)
        return (x + noise[:, None]).reshape(-1, x.shape[1])

    def denoise_over(self, x: F32, sigma: float, supports: Supports) -> F32:
        """The posterior means of each query's copies, averaged, (b, D)."""
        supports, averaged = per_query(supports, len(x)), np.empty_like(x)
        step = max(1, int(self.memory_limit // (BYTES_PER_VALUE * self.copies * x.shape[1])))
        for i in range(0, len(x), step):
            copies, own_supports = self.noisy(x[i : i + step], sigma), list(supports[i : i + step])
            means = super().denoise_over(copies, sigma, own_supports * self.copies)
            averaged[i : i + step] = means.reshape(self.copies, len(own_supports), -1).mean(axis=0)
        return averaged

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query (D,), with logs of mean weights as logits; see the base class."""
        copies, shares = self.noisy(x[None], sigma), np.full((self.copies, 1), 1 / self.copies)
        parts = as_support(support).split(self.part_size)
        for part, logits in mixed(parts, partial(self.logits, copies, sigma), shares):
            values = values_at(self.images, part.rows, pixel)
            yield Contribution(part.rows, logits, values)
