"""The exact posterior over the images of a support: its variance, its samples, its derivatives.

The first pass gives the weights w_i = exp(l_i) / sum_j exp(l_j) of the logits l_i(x) and the mean
m = sum_i w_i v_i. A second pass over the same images gives

    variance                  sum_i w_i (v_i - m)^2
    gradient of u . m in x    sum_i w_i u . (v_i - m) dl_i/dx

For Optimal, the gradient is Cov[x0 | x] u / sigma^2. For PCA and Kamb, every output has its own
logits and weights. A pass is an estimator whose partial sums add up, so shards can run it too.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch

from golddiff.noise import precision
from golddiff.posterior import Posterior, weighted_sum
from golddiff.store.closed_form import main_directions, no_posterior
from golddiff.store.device import on_disk
from golddiff.store.images import ImageStore
from golddiff.store.posterior_draw import PosteriorDraw, TopImages
from golddiff.store.posteriors import for_one_level, with_images
from golddiff.support import AnySupport, Support, TiledSupport, per_query, tile_of_each
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64

FIRST, VARIANCE, PULL = "first", "variance", "pull"
# Queries whose mean float32 may move by more have their moments computed in float64. The estimate
# is 10 times the measured error.
TOL = 1e-3
CACHE_SHARE = 1 / 16  # share of the memory limit for logits cached between passes

# What an estimator's ``terms(x, gain, sigma, part)`` returns for queries x (b, D), in float64, and
# gain = 1 / (2 sigma^2), (b, 1): differentiable logits of a part of its images, in plain torch, as
# (query, logits, values): the number of the query, its images' logits (m, L) without log weights,
# and their values (m, V), V a multiple of L.
Terms = Iterator[tuple[int, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class FirstPass:
    """Results of earlier passes over queries' posteriors, float64.

    Attributes:
        mean: (b, V) posterior means; zeros in the first pass.
        log_max: (b, L) the largest logit; -inf in the first pass.
        total: (b, L) the sum of exp(logit - log_max).
        logits: (b, m) logits plus log weights of the current images; None if not kept.
    """

    mean: F64
    log_max: F64
    total: F64
    logits: F64 | None = None

    def in_float32(self, cotangent: F64 | None) -> tuple[F32, F32, F32, F32]:
        """The mean, the largest logit, 1 / total and the cotangent (0 rows if None), for loops."""
        return (
            self.mean.astype(np.float32),
            self.log_max.astype(np.float32),
            (1 / self.total).astype(np.float32),
            (self.mean[:0] if cotangent is None else cotangent).astype(np.float32),
        )

    @property
    def log_total(self) -> F64:
        """(b, L) log of the sum of the weights."""
        return self.log_max + np.log(self.total)


class PosteriorPass:
    """One pass over the images of a support, run by a training set like an estimator.

    A query packs, in float64: x (D), the mean (V), a cotangent (V), the largest logit (L), the sum
    of weights relative to it (L) and the query's number. The first pass has no mean or weights yet.
    V is the estimator's ``n_values``.

    FIRST computes the posterior's own sums, VARIANCE the variance (V), and PULL the gradient of
    mean . cotangent as the (D + 3 L) sums of
    :meth:`golddiff.estimators.optimal.Optimal.moments`. The first pass writes logits to ``cache``
    (b, N), which later ones read; None recomputes them. ``in_float64`` uses the estimator's
    ``terms`` even if it has moments, which are faster.
    """

    def __init__(
        self, estimator: Any, sigma: float, mode: str, cache: F64 | None, in_float64: bool
    ) -> None:
        self.images, self.store, self.mode = estimator.images, estimator.store, mode
        self.memory_limit = estimator.memory_limit
        self._v = estimator.n_values
        self._decoded = estimator.part_size  # images that a thread decodes at a time
        self._uses_moments = mode != FIRST and hasattr(estimator, "moments") and not in_float64
        # Optimal sums without decoding: larger parts allocate less.
        self.part_size = self._decoded * (4 if self._uses_moments and estimator.joint else 1)
        self._estimator, self._cache = for_one_level(estimator, sigma), cache

    def ready(self, sigma: float) -> Any:
        """The estimator for one noise level, without images; shards receive this copy."""
        return self._estimator

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Bytes (part, each): float64 terms with autograd buffers, and partial sums."""
        if self.mode == FIRST and self._cache is not None:  # the estimator's own weighing
            return self._over_images().working_bytes(images)
        part = 8 * (6 * self.images.d + 2 * self._v) * min(images, self._decoded)
        return part, 8 * self._v

    def weigh(self, x: F64, sigma: float, part: Support) -> Posterior:
        """The sums over the images of ``part`` for queries (b, D + 2 V + 2 L + 1)."""
        if self.mode == FIRST and self._cache is not None:
            query = x[:, : self.images.d].astype(np.float32)
            posterior, logits = self._over_images().weigh_with_logits(query, sigma, part)
            self._cache[_numbers(x), part.rows] = logits
            return posterior
        return self._sums(x, sigma, part, torch.from_numpy(part.log_importance())[:, None])

    def tiled_posterior(self, x: F64, sigma: float, support: TiledSupport) -> Posterior:
        """The sums for queries (b, D + 2 V + 2 L + 1), each tile's outputs over its images."""
        if self._uses_moments:
            packed = self._unpacked(x, support.rows)
            return _additive(self._over_images().tiled_moments(sigma, support, *packed))
        tiles = tile_of_each(self.images.shape, support.side)

        def sums_of(part: Support) -> Posterior:
            prior = torch.from_numpy(support.log_weights_of(part.rows)[tiles].T)
            return self._sums(x, sigma, part, prior)

        return reduce(Posterior.merge, map(sums_of, Support(support.rows).split(self.part_size)))

    def _over_images(self) -> Any:
        return with_images(self._estimator, self.images)

    def _unpacked(self, x: F64, rows: I64) -> tuple[F64, FirstPass, F64 | None]:
        """The queries, their first pass, and the cotangent if the mode needs it."""
        d, v, locations = self.images.d, self._v, (x.shape[1] - self.images.d - 2 * self._v) // 2
        ends = np.cumsum([d, v, v, locations, locations])
        query, mean, cotangent, log_max, total, _ = np.split(
            np.asarray(x, np.float64), ends, axis=1
        )
        logits = None if self._cache is None else self._cache[_numbers(x), rows]
        known = FirstPass(mean, log_max, total, logits)
        return query, known, cotangent if self.mode == PULL else None

    def _sums(self, x: F64, sigma: float, part: Support, prior: torch.Tensor) -> Posterior:
        query, known, cotangent = self._unpacked(x, part.rows)
        estimator = self._over_images()
        if self._uses_moments:
            return _additive(estimator.moments(sigma, part, query, known, cotangent))
        inputs = torch.from_numpy(query)
        gain = torch.full((len(x), 1), precision(sigma), dtype=torch.float64, device="cpu")
        if cotangent is None:
            with torch.no_grad():
                terms = estimator.terms(inputs, gain, sigma, part)
                if self.mode == FIRST:
                    return _posterior(terms, prior, len(x), self._v)
                return _additive(_variance(terms, prior, known))
        with torch.enable_grad():
            variables = inputs.clone().requires_grad_(), gain.requires_grad_()
            terms = estimator.terms(*variables, sigma, part)
            score = _surrogate(terms, prior, known, torch.from_numpy(cotangent), gain)
            in_x, in_gain = torch.autograd.grad(score, variables)
        # float64 sums need no correction for rounding: only the first of the 3 L sums is not 0.
        rest = np.zeros((len(x), 3 * known.total.shape[1] - 1))
        return _additive(np.concatenate([in_x.numpy(), in_gain.numpy(), rest], axis=1))


def _numbers(x: F64) -> I64:
    """The number (b, 1) of each packed query: its row in the cache of logits."""
    return x[:, -1:].astype(np.int64)


def _posterior(terms: Terms, prior: torch.Tensor, b: int, d: int) -> Posterior:
    total: Posterior | None = None
    for q, logits, values in terms:
        total = total or Posterior.empty(b, logits.shape[1], d)
        total.add_to([q], Posterior.of_logits((logits + prior).T.numpy(), values.numpy()))
    assert total is not None
    return total


def _variance(terms: Terms, prior: torch.Tensor, known: FirstPass) -> F64:
    log_total, out = torch.from_numpy(known.log_total), np.zeros_like(known.mean)
    for q, logits, values in terms:
        weights = torch.exp(logits + prior - log_total[q]).T.numpy()
        out[q] += weighted_sum(weights, np.square(values.numpy() - known.mean[q]))
    return out


def _surrogate(
    terms: Terms, prior: torch.Tensor, known: FirstPass, cotangent: torch.Tensor, gain: torch.Tensor
) -> torch.Tensor:
    """A scalar that has the same gradient as mean . cotangent."""
    score = cotangent.new_zeros(())
    mean, log_total = torch.from_numpy(known.mean), torch.from_numpy(known.log_total)
    # Weighted differences to the mean sum to 0, so a term shared by all logits may be subtracted.
    shared = log_total * (gain / gain.detach())
    for q, logits, values in terms:
        weights = torch.exp(logits.detach() + prior - log_total[q])
        pulls = cotangent[q] * (values - mean[q])
        by_location = pulls.reshape(len(values), -1, logits.shape[1]).sum(dim=1)
        score = score + (weights * by_location * (logits - shared[q])).sum()
    return score


def _additive(sums: F64) -> Posterior:
    """Plain sums as a posterior with log_max 0, so that a merge adds them."""
    ones = np.ones((len(sums), 1))
    return Posterior(np.zeros_like(ones), ones, sums)


class ImagesPosterior:
    """The posterior of queries (b, D) that share a noise level, each over its own support.

    ``log_prior`` is the log of the total prior weight of all images. Estimators whose mean is not
    the mean of a single posterior are rejected: PCA with "wss", SCFDM, PSPC.
    """

    def __init__(
        self,
        estimator: Any,
        x: F32,
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
        log_prior: float,
    ) -> None:
        if not (estimator.merges and any(hasattr(estimator, n) for n in ("moments", "terms"))):
            raise no_posterior(estimator)
        # All passes run on the CPU: a second pass needs the weights of the first to every digit.
        self.estimator = copy.copy(estimator)
        self.estimator.store = on_disk(estimator.store)
        self.x, self.sigma, self.supports = x, sigma, supports
        self._log_prior = log_prior
        self._uncertain: list[int] = []  # queries whose weights float32 does not resolve
        store = self.estimator.store
        single = isinstance(store, ImageStore) and estimator.joint
        cached = single and 8 * len(x) * store.n <= CACHE_SHARE * estimator.memory_limit
        self._cache = np.empty((len(x), store.n)) if cached else None

    @cached_property
    def _first(self) -> Posterior:
        estimator, b = self.estimator, len(self.x)
        unknown = np.zeros((b, 2 * estimator.n_values + 2))
        packed = np.concatenate([self.x, unknown], axis=1)
        if not hasattr(estimator, "moments") or self._cache is not None:
            return self._run(FIRST, packed, range(b), False)
        posterior: Posterior = estimator.store.posterior(
            estimator, self.x, self.sigma, self.supports
        )
        if not estimator.joint:  # whose weights are exact
            uncertain = (posterior.rounding() > TOL).any(axis=1)
            self._uncertain = np.flatnonzero(uncertain).tolist()
        if not self._uncertain:
            return posterior
        certain, exact = self._certain, self._run(FIRST, packed, self._uncertain, True)
        return Posterior.of_queries([posterior.of(certain), exact], [*certain, *self._uncertain])

    def mean(self) -> F64:
        """Posterior means (b, D)."""
        return self.estimator.composed(self._means, self.sigma)

    @cached_property
    def _means(self) -> F64:
        return self.estimator.means(self.x, self.sigma, self.supports, self._first)

    @property
    def _certain(self) -> list[int]:
        return [i for i in range(len(self.x)) if i not in self._uncertain]

    def variance(self) -> F64:
        """Variance of each output value, (b, D)."""
        b, d = self.x.shape
        return self._second(VARIANCE, np.zeros((b, self.estimator.n_values))).weighted[:, :d]

    def pull(self, cotangent: F64) -> tuple[F64, F64]:
        """Gradients of mean . cotangent (b, D) with respect to x (b, D) and sigma (b,)."""
        seamless = self.estimator.seamless
        cotangent = cotangent if seamless is None else seamless.transposed(cotangent)
        sums, d = self._second(PULL, cotangent).weighted, self.x.shape[1]
        in_gain, rounding, mean_slope = sums[:, d:].reshape(len(sums), 3, -1).swapaxes(0, 1)
        in_gain = (in_gain - rounding * mean_slope).sum(axis=1)
        return sums[:, :d], in_gain * (-2 * precision(self.sigma) / self.sigma)

    def _second(self, mode: str, cotangent: F64) -> Posterior:
        first = self._first
        packed = np.concatenate(
            [self.x, self._means, cotangent, first.log_max, first.total], axis=1
        )
        groups = [(q, q is self._uncertain) for q in (self._certain, self._uncertain) if q]
        sums = [self._run(mode, packed, *group) for group in groups]
        return Posterior.of_queries(sums, [i for queries, _ in groups for i in queries])

    def _run(self, mode: str, packed: F64, queries: Sequence[int], in_float64: bool) -> Posterior:
        """A pass over some of the queries, numbered by their rows in the cache."""
        rows = np.array(queries)
        supports = per_query(self.supports, len(self.x))
        return self.estimator.store.posterior(
            PosteriorPass(self.estimator, self.sigma, mode, self._cache, in_float64),
            np.concatenate([packed[rows], rows[:, None]], axis=1),
            self.sigma,
            [supports[i] for i in queries],
        )

    def log_density(self) -> F64:
        """Log of p_sigma(x) = sum_i p_i N(x; x_i, sigma^2 I) in nats, (b,).

        Raises:
            ArgumentError: the estimator has no joint posterior.
        """
        self._require_joint("log density")
        first, d = self._first, self.x.shape[1]
        log_total = (first.log_max + np.log(first.total))[:, 0]
        noise = d * (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))
        return log_total - self._log_prior - noise

    def times(self, vectors: F64) -> F64:
        """The posterior covariance times vectors (b, D)."""
        return self.pull(vectors)[0] * self.sigma**2

    def directions(self, k: int) -> tuple[F64, F64]:
        """The covariance's k largest eigenvalues (b, k), descending, and eigenvectors (b, k, D)."""
        self._require_joint("directions")
        pairs = zip(self.x, per_query(self.supports, len(self.x)), strict=True)
        singles = (
            ImagesPosterior(self.estimator, x[None], self.sigma, [support], self._log_prior)
            for x, support in pairs
        )
        found = (main_directions(single.times, self.x.shape[1], k) for single in singles)
        values, vectors = zip(*found, strict=True)
        return np.stack(values), np.stack(vectors)

    def draw(self, n: int, seed: int, positions: Sequence[int]) -> F32:
        """Images (n, b, D) drawn by weight; ``seed`` and ``positions`` fix the random numbers."""
        self._require_joint("draws")
        question = PosteriorDraw(self.estimator, self.sigma, n, seed, tuple(positions))
        drawn: TopImages = self.estimator.store.answer(question, self.x, self.supports)
        values: F32 = self.estimator.store.values(drawn.rows.T.ravel())
        return values.reshape(n, len(self.x), -1)

    def _require_joint(self, what: str) -> None:
        if not self.estimator.joint:
            raise ArgumentError(
                f"{what}: {type(self.estimator).__name__} has no joint posterior of all output "
                "values; expected Optimal, Wiener or GaussianMixture"
            )
