"""The exact posterior over the images of a support: its variance, its samples, its derivatives.

The first pass gives the weights w_i = exp(l_i) / sum_j exp(l_j) of the logits l_i(x) and the mean
m = sum_i w_i v_i. A second pass over the same images gives

    variance                  sum_i w_i (v_i - m)^2
    gradient of u . m in x    sum_i w_i u . (v_i - m) dl_i/dx

For Optimal, the gradient is Cov[x0 | x] u / sigma^2. For PCA and Kamb, every output has its own
logits and weights. A pass is an estimator whose partial sums add up, so shards can run it too.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import numpy as np
import torch

from golddiff.noise import precision
from golddiff.posterior import Posterior
from golddiff.store.closed_form import ONLY_FOR_GRADIENTS, main_directions
from golddiff.store.images import ImageStore
from golddiff.store.posterior_draw import PosteriorDraw, TopImages
from golddiff.store.posteriors import for_one_level, with_images
from golddiff.support import AnySupport, Support, TiledSupport, per_query, tile_of_each
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64, I64

FIRST, VARIANCE, PULL = "first", "variance", "pull"
CACHE_SHARE = 1 / 16  # share of the memory limit for logits cached between passes

# Differentiable logits of images for queries, in plain torch and float64: (query, logits, values),
# the number of the query, its images' logits (m, L) without log weights, and their values (m, V),
# V a multiple of L.
Terms = Iterator[tuple[int, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class FirstPass:
    """Results of earlier passes over queries' posteriors, float64.

    Attributes:
        mean: (b, D) posterior means; zeros in the first pass.
        log_total: (b, L) log of the sum of the weights; -inf in the first pass.
        logits: (b, m) logits plus log weights of the current images; None if not kept.
    """

    mean: torch.Tensor
    log_total: torch.Tensor
    logits: F64 | None = None


class PosteriorPass:
    """One pass over the images of a support, run by a training set like an estimator.

    A query packs, in float64: x (D), the mean (V), a cotangent (V), the log of the sum of weights
    (L) and the query's number. The first pass has no mean or weights yet. V is the estimator's
    ``n_values``.

    Args:
        estimator: weighs the images.
        mode: FIRST computes the posterior's own sums, VARIANCE the variance (V), and PULL the
            gradient of mean . cotangent as the (D + 3) sums of
            :meth:`golddiff.estimators.optimal.Optimal.mean_pullback`.
        cache: (b, N) logits that the first pass writes and later ones read; None recomputes them.
    """

    def __init__(self, estimator: Any, mode: str, cache: F64 | None = None) -> None:
        self.images, self.store, self.mode = estimator.images, estimator.store, mode
        self.memory_limit = estimator.memory_limit
        self._v = estimator.n_values
        self._decoded = estimator.part_size  # images that a thread decodes at a time
        self._native = mode != FIRST and estimator.joint  # the estimator sums without decoding
        self.part_size = self._decoded * (4 if self._native else 1)
        self._estimator, self._cache = estimator, cache
        self._ready: dict[float, Any] = {}

    def ready(self, sigma: float) -> Any:
        """The estimator for one noise level, without images; shards receive this copy."""
        if sigma not in self._ready:
            self._ready[sigma] = for_one_level(self._estimator, sigma)
        return self._ready[sigma]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_estimator": None, "_cache": None}

    def on_device(self, sigma: float, store: Any) -> None:
        """None: a pass runs on the CPU only."""

    def working_bytes(self, images: int) -> tuple[int, int]:
        """Bytes (part, each): float64 terms with autograd buffers, and partial sums."""
        if self.mode == FIRST and self._cache is not None:  # the estimator's own weighing
            own: tuple[int, int] = self._estimator.working_bytes(images)
            return own
        part = 8 * (6 * self.images.d + 2 * self._v) * min(images, self._decoded)
        return part, 8 * self._v

    def weigh(self, x: F64, sigma: float, part: Support) -> Posterior:
        """The sums over the images of ``part`` for queries (b, D + 2 V + L + 1)."""
        if self.mode == FIRST and self._cache is not None:
            estimator, query = with_images(self.ready(sigma), self.images), x[:, : self.images.d]
            posterior, logits = estimator.weigh_with_logits(query.astype(np.float32), sigma, part)
            self._cache[_numbers(x), part.rows] = logits
            return posterior  # type: ignore[no-any-return]
        return self._sums(x, sigma, part, torch.from_numpy(part.log_importance())[:, None])

    def tiled_posterior(self, x: F64, sigma: float, support: TiledSupport) -> Posterior:
        """The sums for queries (b, D + 2 V + L + 1), each tile's outputs over the tile's images."""
        tiles = tile_of_each(self.images.shape, support.side)

        def sums_of(part: Support) -> Posterior:
            prior = torch.from_numpy(support.log_weights_of(part.rows)[tiles].T)
            return self._sums(x, sigma, part, prior)

        return reduce(Posterior.merge, map(sums_of, Support(support.rows).split(self.part_size)))

    def _sums(self, x: F64, sigma: float, part: Support, prior: torch.Tensor) -> Posterior:
        estimator, d, v = with_images(self.ready(sigma), self.images), self.images.d, self._v
        packed = torch.from_numpy(np.asarray(x, np.float64))
        ends = [d, d + v, d + 2 * v, x.shape[1] - 1]
        query, mean, cotangent, log_total, _ = packed.tensor_split(ends, dim=1)
        logits = None if self._cache is None else self._cache[_numbers(x), part.rows]
        known = FirstPass(mean, log_total, logits)
        if self._native and self.mode == VARIANCE:
            return _additive(estimator.weighted_squares(query.numpy(), sigma, part, known))
        if self._native:
            pulled = estimator.mean_pullback(query.numpy(), sigma, part, known, cotangent.numpy())
            return _additive(pulled)
        gain = torch.full((len(x), 1), precision(sigma), dtype=torch.float64, device="cpu")
        if self.mode != PULL:
            with torch.no_grad():
                terms = estimator.terms(query, gain, sigma, part)
                if self.mode == FIRST:
                    return _posterior(terms, prior, len(x), v)
                return _additive(_variance(terms, prior, known).numpy())
        with torch.enable_grad():
            inputs = query.clone().requires_grad_(), gain.requires_grad_()
            terms = estimator.terms(*inputs, sigma, part)
            score = _surrogate(terms, prior, known, cotangent, inputs[1])
            slopes = torch.cat(torch.autograd.grad(score, inputs), dim=1)
            # float64 sums need no correction for rounding: the two correction columns are 0.
            return _additive(torch.nn.functional.pad(slopes, (0, 2)).numpy())


def _numbers(x: F64) -> I64:
    """The number (b, 1) of each packed query: its row in the cache of logits."""
    return x[:, -1:].astype(np.int64)


def _posterior(terms: Terms, prior: torch.Tensor, b: int, d: int) -> Posterior:
    total: Posterior | None = None
    for q, logits, values in terms:
        weighted = logits + prior
        top = weighted.amax(dim=0)
        weights = torch.exp(weighted - top)
        sums = top, weights.sum(dim=0), _spread_sum(weights, values)
        total = total or Posterior.empty(b, len(top), d)
        total.add_to([q], Posterior(*(array[None].numpy() for array in sums)))
    assert total is not None
    return total


def _spread_sum(weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Sum of weights (m, L) times values (m, V) over images, for each channel: (V,)."""
    by_channel = values.reshape(len(values), -1, weights.shape[1])
    return torch.einsum("ml,mcl->cl", weights, by_channel).flatten()


def _variance(terms: Terms, prior: torch.Tensor, known: FirstPass) -> torch.Tensor:
    out = torch.zeros_like(known.mean)
    for q, logits, values in terms:
        weights = torch.exp(logits + prior - known.log_total[q])
        out[q] += _spread_sum(weights, (values - known.mean[q]) ** 2)
    return out


def _surrogate(
    terms: Terms, prior: torch.Tensor, known: FirstPass, cotangent: torch.Tensor, gain: torch.Tensor
) -> torch.Tensor:
    """A scalar that has the same gradient as mean . cotangent."""
    score = cotangent.new_zeros(())
    # Weighted differences to the mean sum to 0, so a term shared by all logits may be subtracted.
    shared = known.log_total * (gain / gain.detach())
    for q, logits, values in terms:
        weights = torch.exp(logits.detach() + prior - known.log_total[q])
        pulls = cotangent[q] * (values - known.mean[q])
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
    the mean of a single posterior are rejected: PCA with "wss", SCFDM.
    """

    def __init__(
        self,
        estimator: Any,
        x: F32,
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
        log_prior: float,
    ) -> None:
        if not estimator.merges:
            raise ArgumentError(
                f"posterior: the mean of {type(estimator).__name__} does not come from one "
                f"posterior; expected Optimal, Kamb, or PCA with weighting 'ss'{ONLY_FOR_GRADIENTS}"
            )
        self.estimator, self.x, self.sigma, self.supports = estimator, x, sigma, supports
        self._log_prior = log_prior
        size = 8 * len(x) * estimator.store.n
        single = isinstance(estimator.store, ImageStore) and estimator.joint
        cached = single and size <= CACHE_SHARE * estimator.memory_limit
        self._cache = np.empty((len(x), estimator.store.n)) if cached else None

    @cached_property
    def _first(self) -> Posterior:
        if self.estimator.joint and self._cache is None:
            posterior: Posterior = self.estimator.store.posterior(
                self.estimator, self.x, self.sigma, self.supports
            )
            return posterior
        b = len(self.x)
        unknown = [np.zeros((b, 2 * self.estimator.n_values)), np.full((b, 1), -np.inf)]
        return self._run(FIRST, np.concatenate([self.x, *unknown], axis=1))

    def mean(self) -> F64:
        """Posterior means (b, D)."""
        means: F64 = self.estimator.composed(self._first.mean(), self.sigma)
        return means

    def variance(self) -> F64:
        """Variance of each output value, (b, D)."""
        b, d = self.x.shape
        return self._second(VARIANCE, np.zeros((b, self.estimator.n_values))).weighted[:, :d]

    def pull(self, cotangent: F64) -> tuple[F64, F64]:
        """Gradients of mean . cotangent (b, D) with respect to x (b, D) and sigma (b,)."""
        seamless = self.estimator.seamless
        cotangent = cotangent if seamless is None else seamless.transposed(cotangent)
        sums, d = self._second(PULL, cotangent).weighted, self.x.shape[1]
        in_gain, rounding, mean_slope = sums[:, d:].T
        in_gain = in_gain - rounding * mean_slope
        return sums[:, :d], in_gain * (-2 * precision(self.sigma) / self.sigma)

    def _second(self, mode: str, cotangent: F64) -> Posterior:
        first = self._first
        log_total = first.log_max + np.log(first.total)
        packed = np.concatenate([self.x, first.mean(), cotangent, log_total], axis=1)
        return self._run(mode, packed)

    def _run(self, mode: str, queries: F64) -> Posterior:
        numbered = np.concatenate([queries, np.arange(len(queries))[:, None]], axis=1)
        sums: Posterior = self.estimator.store.posterior(
            PosteriorPass(self.estimator, mode, self._cache), numbered, self.sigma, self.supports
        )
        return sums

    def log_density(self) -> F64:
        """Log of p_sigma(x) = sum_i p_i N(x; x_i, sigma^2 I) in nats, (b,).

        Raises:
            ArgumentError: the estimator has no joint posterior.
        """
        self._require_joint("log density")
        first, d = self._first, self.x.shape[1]
        log_total = (first.log_max + np.log(first.total))[:, 0]
        noise = d * (math.log(self.sigma) + 0.5 * math.log(2 * math.pi))
        density: F64 = log_total - self._log_prior - noise
        return density

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
                f"{what}: {type(self.estimator).__name__} weighs images per output value, so it "
                "has no joint posterior; expected Optimal, Wiener or GaussianMixture"
            )
