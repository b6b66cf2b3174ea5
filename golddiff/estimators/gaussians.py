"""The exact posterior under a mixture of Gaussians, p(x0) = sum_c w_c N(mu_c, C_c).

x = x0 + sigma eps has density sum_c w_c N(x; mu_c, C_c + sigma^2 I). Given its component, x0 is
Gaussian with mean m_c = mu_c + C_c (C_c + sigma^2 I)^-1 (x - mu_c) and covariance
S_c = sigma^2 C_c (C_c + sigma^2 I)^-1; with r_c(x) the share of component c,

    mean m = sum_c r_c m_c          covariance sum_c r_c [S_c + (m_c - m)(m_c - m)^T].
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.measurement import linear
from golddiff.noise import Labels, Sigma
from golddiff.store.closed_form import largest_first, needs_gradient, score_of, with_gradient
from golddiff.store.likelihood import check_measured
from golddiff.store.posteriors import TransientCache
from golddiff.system.arguments import check_not_negative
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64


@dataclass(frozen=True)
class Gaussian:
    """One component."""

    log_weight: Any  # log of the mixture weight, a number or one per query (b,)
    mean: F64  # (D,), or one per query (b, D)
    values: F64  # (m,) positive eigenvalues of the covariance
    vectors: F64  # (D, m) their eigenvectors in columns


class GaussiansPosterior:
    """The posterior of queries (b, D) that share a noise level; see :class:`Exact`.

    Each call of ``components`` iterates over the mixture, so that one is in memory at a time.
    """

    def __init__(
        self,
        components: Callable[[], Iterator[Gaussian]],
        x: NDArray[np.floating[Any]],
        sigma: float,
    ) -> None:
        self._components, self.x, self.sigma = components, x.astype(np.float64), sigma
        logits, slopes, means = [], [], []
        d, s = self.x.shape[1], self.sigma
        for g in self._components():
            centred = self.x - g.mean
            coords, total = centred @ g.vectors, g.values + s**2
            residual = ((centred - coords @ g.vectors.T) ** 2).sum(axis=1)
            nullity = d - len(g.values)
            distances = (coords**2 / total).sum(axis=1) + residual / s**2
            log_det = np.log(total).sum() + nullity * 2 * math.log(s) + d * math.log(2 * math.pi)
            logits.append(g.log_weight - 0.5 * (distances + log_det))
            rise = (coords**2 / total**2).sum(axis=1) * s + residual / s**3
            slopes.append(rise - (s / total).sum() - nullity / s)
            means.append(g.mean + (coords * (g.values / total)) @ g.vectors.T)
        # (b, K) logs of w_c N(x; ...), their derivatives in sigma, and (K, b, D) means m_c. Not
        # cached properties, whose locks in Python 3.11 make calls of other threads wait.
        self._terms = np.stack(logits, axis=1), np.stack(slopes, axis=1), np.stack(means)
        self._shares = np.exp(self._terms[0] - self.log_density()[:, None])

    def log_density(self) -> F64:
        """(b,) in nats."""
        return np.logaddexp.reduce(self._terms[0], axis=1)

    def mean(self) -> F64:
        """(b, D)."""
        return np.einsum("bk,kbd->bd", self._shares, self._terms[2])

    def variance(self) -> F64:
        """(b, D) marginal variances."""
        squares = (self._terms[2] - self.mean()) ** 2
        total: F64 = np.einsum("bk,kbd->bd", self._shares, squares)
        for share, g in zip(self._shares.T, self._components(), strict=True):
            total += share[:, None] * (g.vectors**2 @ self._variances(g))
        return total

    def times(self, vectors: F64) -> F64:
        """The posterior covariance times vectors (b, D)."""
        centred = self._terms[2] - self.mean()
        total: F64 = np.einsum(
            "bk,kbd,bk->bd", self._shares, centred, np.einsum("kbd,bd->bk", centred, vectors)
        )
        for share, g in zip(self._shares.T, self._components(), strict=True):
            total += share[:, None] * (((vectors @ g.vectors) * self._variances(g)) @ g.vectors.T)
        return total

    def pull(self, cotangent: F64) -> tuple[F64, F64]:
        """Derivatives of cotangent . mean: in x (b, D) and in sigma (b,)."""
        _, slopes, means = self._terms
        slopes = slopes - (self._shares * slopes).sum(axis=1, keepdims=True)
        in_sigma = (self._shares * slopes * np.einsum("kbd,bd->bk", means, cotangent)).sum(axis=1)
        for share, g in zip(self._shares.T, self._components(), strict=True):
            products = (self.x - g.mean) @ g.vectors * (cotangent @ g.vectors)
            gain_slopes = -2 * self.sigma * g.values / (g.values + self.sigma**2) ** 2
            in_sigma += share * (products @ gain_slopes)
        return self.times(cotangent) / self.sigma**2, in_sigma

    def directions(self, k: int) -> tuple[F64, F64]:
        """The covariance's k largest eigenvalues (b, k), descending, and eigenvectors (b, k, D)."""
        values, vectors = zip(*(self._directions(q, k) for q in range(len(self.x))), strict=True)
        return np.stack(values), np.stack(vectors)

    def _directions(self, query: int, k: int) -> tuple[F64, F64]:
        d, shares = self.x.shape[1], self._shares[query]
        best = int(shares.argmax())
        if shares[best] < 1:
            from scipy.linalg import eigh  # imports slowly

            require_memory(32 * d * d, f"a covariance of {d:,} values", "use smaller images")
            centred = self._terms[2][:, query] - self.mean()[query]
            covariance = (shares[:, None] * centred).T @ centred
            for share, g in zip(shares, self._components(), strict=True):
                if share > 0:
                    root = g.vectors * np.sqrt(share * self._variances(g))
                    covariance += root @ root.T
            # An iterative solver may not converge: the largest eigenvalues are nearly equal.
            values, vectors = eigh(covariance, subset_by_index=(d - k, d - 1), overwrite_a=True)
            return largest_first(values, vectors, k)
        # A single component's directions are known.
        g = next(islice(self._components(), best, None))
        values, vectors = self._variances(g), g.vectors
        if k > len(values):  # complete the basis with directions of variance 0
            vectors = np.linalg.qr(vectors, mode="complete")[0]
            values = np.pad(values, (0, d - len(values)))
        return largest_first(values, vectors, k)

    def draw(self, n: int, seed: int, positions: Sequence[int]) -> F32:
        """(n, b, D) samples; each query's depend on its own entry of ``positions`` only."""
        b, d = self.x.shape
        chosen, out = np.empty((n, b), np.int64), np.empty((n, b, d), np.float32)  # first noise
        for q, position in enumerate(positions):
            for i in range(n):
                generator = np.random.default_rng((4, seed, position, i))
                chosen[i, q] = int((self._shares[q].cumsum() <= generator.random()).sum())
                out[i, q] = generator.standard_normal(d, np.float32)
        for c, g in enumerate(self._components()):
            draws, queries = np.nonzero(chosen.clip(max=self._shares.shape[1] - 1) == c)
            # The symmetric root does not depend on the eigenvectors' signs, which LAPACK chooses.
            root = (out[draws, queries] @ g.vectors * np.sqrt(self._variances(g))) @ g.vectors.T
            out[draws, queries] = self._terms[2][c, queries] + root
        return out

    def _variances(self, g: Gaussian) -> F64:
        """(m,) eigenvalues of a component's posterior covariance S_c."""
        return self.sigma**2 * g.values / (g.values + self.sigma**2)


class GaussianDenoiser(Denoiser, ABC):
    """A denoiser whose prior is a mixture of Gaussians."""

    @abstractmethod
    def gaussians(self, prior: Any) -> Iterator[Gaussian]:
        """The components of the prior over all images (None) or over a class."""

    def exact(self, x: F32, sigma: float, prior: Any) -> GaussiansPosterior:
        """The posterior of queries (b, D)."""
        return GaussiansPosterior(partial(self.gaussians, prior), x, sigma)

    def denoise(self, x: F32, sigma: float, prior: Any) -> F32:
        """Posterior means (b, D), computed in float64 and rounded to the type of x."""
        return self.exact(x, sigma, prior).mean().astype(x.dtype)

    def score(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """See the base class; from the mean in float64, which at low noise is close to x."""
        if needs_gradient(x, sigma):
            mean = with_gradient(x, sigma, partial(self.posterior, labels=labels))
        else:
            queries, groups = self._groups(x, sigma, labels)
            in_float64: Any = queries.astype(np.float64)
            means = self._denoise_groups(in_float64, groups)
            mean = torch.from_numpy(means).reshape(x.shape).to(x.device)
        return score_of(mean, x, sigma).float()

    def given_measurement(self, operator: Any, y: torch.Tensor, noise: float) -> MeasuredGaussians:
        """See the base class. Conditions the Gaussians, which requires noise above 0."""
        return MeasuredGaussians(self, operator, y, noise)


class MeasuredGaussians(GaussianDenoiser):
    """A mixture of Gaussians conditioned on y = A x0 + noise eps, again a mixture of Gaussians.

    With S_c = A C_c A^T + noise^2 I, a component's weight, mean and covariance become

        w_c N(y; A mu_c, S_c),    mu_c + C_c A^T S_c^-1 (y - A mu_c),    C_c - C_c A^T S_c^-1 A C_c

    up to a common factor of the weights (Bishop 2006, Sec. 2.3.3). The first call, and one with
    another class than the last, computes D x min(N, D) numbers per component.

    Args:
        unmeasured: the denoiser without the measurement.
        operator: A, linear up to a constant.
        y: (B, *measured) measurements, one for all queries or one per query.
        noise: standard deviation of y's noise, above 0.
    """

    def __init__(
        self, unmeasured: GaussianDenoiser, operator: Any, y: torch.Tensor, noise: float
    ) -> None:
        super().__init__(unmeasured.store)
        self.unmeasured, self.noise = unmeasured, check_not_negative("noise", noise)
        if self.noise == 0:
            raise ArgumentError("noise: got 0, but Gaussians need a number above 0")
        measured = check_measured(y)
        if 1 not in (len(y), unmeasured.batch) and len(y) != unmeasured.batch:
            raise ArgumentError(
                f"y: got {len(y)} measurements, but {unmeasured.batch} were given before"
            )
        linearized = linear(operator, self.store.shape, tuple(y.shape[1:]))
        self._matrix = linearized.matrix
        self._values = (measured - linearized.constant).numpy()[:, linearized.active]
        self.batch = max(unmeasured.batch, len(y))
        self._conditioned: dict[Any, list[Callable[[F64], Gaussian]]] = TransientCache()

    def __repr__(self) -> str:
        return f"{self.unmeasured!r}.given_measurement(...)"

    def _groups(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels
    ) -> tuple[F32, dict[tuple[float, Any], list[int]]]:
        """See the base class; here a prior is (prior before y, measurement of each query)."""
        queries, groups = self.unmeasured._groups(x, sigma, labels)
        b = len(self._values)
        if b not in (1, len(queries)):
            raise ArgumentError(f"x: got {len(queries)} images, but {b} measurements were given")
        return queries, {
            (level, (base_prior, tuple(i % b for i in group))): group
            for (level, base_prior), group in groups.items()
        }

    def gaussians(self, prior: Any) -> Iterator[Gaussian]:
        """The components given the measurement of each query."""
        base_prior, indices = prior
        functions = self._conditioned.get(base_prior)
        if functions is None:
            self._conditioned.clear()
            functions = [self._conditioning(g) for g in self.unmeasured.gaussians(base_prior)]
            self._conditioned[base_prior] = functions
        values = self._values[list(indices)]
        components = [conditioned(values) for conditioned in functions]
        total = np.logaddexp.reduce([g.log_weight for g in components])
        yield from (replace(g, log_weight=g.log_weight - total) for g in components)

    def _conditioning(self, g: Gaussian) -> Callable[[F64], Gaussian]:
        """A function from measured values (b, k) to the component given them.

        All that does not depend on the values is computed here. With C = root root^T and A root /
        noise = u diag(s) axes: S = noise^2 u diag(1 + s^2) u^T apart from directions of pure noise,
        and C A^T S^-1 = lift^T u^T / noise.
        """
        matrix, noise, scales = self._matrix, self.noise, np.sqrt(g.values)
        needed = f"a covariance of {len(g.vectors):,} values"
        require_memory(64 * g.vectors.size, needed, "use smaller images")
        root = g.vectors * scales
        # Eigenvalues of A C A^T would be squares, in which rounding would lose a small noise.
        u, singular, axes = np.linalg.svd(matrix @ root / noise, full_matrices=False)
        e = 1 + singular**2
        log_det = np.log(e).sum() + matrix.shape[0] * math.log(2 * math.pi * noise**2)
        lift = (singular / e)[:, None] * (axes @ root.T)
        # In the basis of g.vectors, because few images span a small part of all D values.
        inner = np.diag(scales) - (scales[:, None] * axes.T * (1 - e**-0.5)) @ axes
        eigenvalues, eigenvectors = np.linalg.eigh(inner @ inner.T)
        kept = eigenvalues > 0
        eigenvalues, eigenvectors = eigenvalues[kept], g.vectors @ eigenvectors[:, kept]

        def conditioned(values: F64) -> Gaussian:
            residual = (values - (matrix @ g.mean.T).T) / noise
            coords = residual @ u
            outside = residual - coords @ u.T
            distances = (coords**2 / e).sum(axis=1) + (outside**2).sum(axis=1)
            log_weight = g.log_weight - 0.5 * (distances + log_det)
            return Gaussian(log_weight, g.mean + coords @ lift, eigenvalues, eigenvectors)

        return conditioned
