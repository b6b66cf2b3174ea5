"""The exact posterior under a mixture of Gaussians, p(x0) = sum_c w_c N(mu_c, C_c).

x = x0 + sigma eps has density sum_c w_c N(x; mu_c, C_c + sigma^2 I). Given its component, x0 is
Gaussian with mean m_c = mu_c + C_c (C_c + sigma^2 I)^-1 (x - mu_c) and covariance
S_c = sigma^2 C_c (C_c + sigma^2 I)^-1; with r_c(x) the share of component c,

    mean m = sum_c r_c m_c          covariance sum_c r_c [S_c + (m_c - m)(m_c - m)^T].
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser
from golddiff.estimators.measurement import linear
from golddiff.noise import Labels, Sigma
from golddiff.store.closed_form import largest_first, main_directions
from golddiff.store.likelihood import check_measured
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64


@dataclass(frozen=True)
class Gaussian:
    """One component."""

    log_weight: Any  # log of its share; or of each query's, (b,)
    mean: F64  # (D,), or (b, D)
    values: F64  # (m,) eigenvalues of its covariance above 0
    vectors: F64  # (D, m), their eigenvectors in columns


class GaussiansPosterior:
    """The posterior of queries (b, D) that share a noise level; see :class:`Exact`.

    ``components`` gives them one by one, as often as it is called; only one is held at a time.
    """

    def __init__(
        self,
        components: Callable[[], Iterator[Gaussian]],
        x: NDArray[np.floating[Any]],
        sigma: float,
    ) -> None:
        self._components, self.x, self.sigma = components, x.astype(np.float64), sigma

    @cached_property
    def _seen(self) -> tuple[F64, F64, F64]:
        """(b, K) logs of w_c N(x; ...), their derivatives in sigma, and (K, b, D) means m_c."""
        logits, slopes, means = [], [], []
        d, s = self.x.shape[1], self.sigma
        for one in self._components():
            off = self.x - one.mean
            along, total = off @ one.vectors, one.values + s**2
            rest = ((off - along @ one.vectors.T) ** 2).sum(axis=1)
            flat = d - len(one.values)
            distance = (along**2 / total).sum(axis=1) + rest / s**2
            size = np.log(total).sum() + flat * 2 * math.log(s) + d * math.log(2 * math.pi)
            logits.append(one.log_weight - 0.5 * (distance + size))
            fall = (along**2 / total**2).sum(axis=1) * s + rest / s**3
            slopes.append(fall - (s / total).sum() - flat / s)
            means.append(one.mean + (along * (one.values / total)) @ one.vectors.T)
        return np.stack(logits, axis=1), np.stack(slopes, axis=1), np.stack(means)

    @cached_property
    def _shares(self) -> F64:
        shares: F64 = np.exp(self._seen[0] - self.log_density()[:, None])
        return shares

    def log_density(self) -> F64:
        """(b,) in nats."""
        density: F64 = np.logaddexp.reduce(self._seen[0], axis=1)
        return density

    def mean(self) -> F64:
        """(b, D)."""
        mean: F64 = np.einsum("bk,kbd->bd", self._shares, self._seen[2])
        return mean

    def variance(self) -> F64:
        """(b, D) of each value."""
        spread = (self._seen[2] - self.mean()) ** 2
        total: F64 = np.einsum("bk,kbd->bd", self._shares, spread)
        for share, one in zip(self._shares.T, self._components(), strict=True):
            total += share[:, None] * (one.vectors**2 @ self._kept(one))
        return total

    def times(self, vectors: F64) -> F64:
        """The posterior's covariance times vectors (b, D)."""
        off = self._seen[2] - self.mean()
        total: F64 = np.einsum(
            "bk,kbd,bk->bd", self._shares, off, np.einsum("kbd,bd->bk", off, vectors)
        )
        for share, one in zip(self._shares.T, self._components(), strict=True):
            total += share[:, None] * (((vectors @ one.vectors) * self._kept(one)) @ one.vectors.T)
        return total

    def pull(self, cotangent: F64) -> tuple[F64, F64]:
        """Derivatives of the mean's product with a cotangent: in x (b, D), in sigma (b,)."""
        _, slopes, means = self._seen
        slopes = slopes - (self._shares * slopes).sum(axis=1, keepdims=True)
        in_sigma = (self._shares * slopes * np.einsum("kbd,bd->bk", means, cotangent)).sum(axis=1)
        for share, one in zip(self._shares.T, self._components(), strict=True):
            along = (self.x - one.mean) @ one.vectors * (cotangent @ one.vectors)
            gains = -2 * self.sigma * one.values / (one.values + self.sigma**2) ** 2
            in_sigma += share * (along @ gains)
        return self.times(cotangent) / self.sigma**2, in_sigma

    def directions(self, k: int) -> tuple[F64, F64]:
        """The covariance's k largest eigenvalues (b, k), descending, and eigenvectors (b, k, D)."""
        values, vectors = zip(*(self._directions(q, k) for q in range(len(self.x))), strict=True)
        return np.stack(values), np.stack(vectors)

    def _directions(self, query: int, k: int) -> tuple[F64, F64]:
        d, best = self.x.shape[1], int(self._shares[query].argmax())
        if self._shares[query, best] < 1:
            alone = self.x[query : query + 1]
            one_query = GaussiansPosterior(partial(self._of, query), alone, self.sigma)
            return main_directions(one_query.times, d, k)
        # Of one component they are its own. At low noise the largest values are nearly alike, and
        # iterations that look for them take minutes.
        one = next(islice(self._components(), best, None))
        values, vectors = self._kept(one), one.vectors
        if k > len(values):  # without variance along the others
            vectors = np.linalg.qr(vectors, mode="complete")[0]
            vectors[:, : len(values)] = one.vectors
            values = np.pad(values, (0, d - len(values)))
        return largest_first(values, vectors, k)

    def _of(self, query: int) -> Iterator[Gaussian]:
        for one in self._components():
            log_weight = np.broadcast_to(one.log_weight, len(self.x))[query]
            mean = np.broadcast_to(one.mean, self.x.shape)[query]
            yield replace(one, log_weight=log_weight, mean=mean)

    def draw(self, n: int, seed: int, places: Sequence[int]) -> F32:
        """(n, b, D) samples; each query's hang on its place, and on no other query."""
        b, d = self.x.shape
        chosen, noise = np.empty((n, b), np.int64), np.empty((n, b, d), np.float32)
        for q, place in enumerate(places):
            for i in range(n):
                generator = np.random.default_rng((4, seed, place, i))
                chosen[i, q] = int((self._shares[q].cumsum() <= generator.random()).sum())
                noise[i, q] = generator.standard_normal(d, np.float32)
        out = np.empty((n, b, d), np.float32)
        for c, one in enumerate(self._components()):
            draws, queries = np.nonzero(chosen.clip(max=self._shares.shape[1] - 1) == c)
            # The symmetric root: signs of eigenvectors, a library's own, do not move a draw.
            root = (noise[draws, queries] @ one.vectors * np.sqrt(self._kept(one))) @ one.vectors.T
            out[draws, queries] = self._seen[2][c, queries] + root
        return out

    def _kept(self, one: Gaussian) -> F64:
        """(m,) eigenvalues of S_c."""
        kept: F64 = self.sigma**2 * one.values / (one.values + self.sigma**2)
        return kept


class GaussianDenoiser(Denoiser):
    """A denoiser whose prior is a mixture of Gaussians."""

    @abstractmethod
    def gaussians(self, prior: Any) -> Iterator[Gaussian]:
        """The components of the prior of all images (None) or of a class."""

    def exact(self, x: F32, sigma: float, prior: Any) -> GaussiansPosterior:
        """The posterior of queries (b, D)."""
        return GaussiansPosterior(partial(self.gaussians, prior), x, sigma)

    def given_measurement(self, operator: Any, y: torch.Tensor, noise: float) -> MeasuredGaussians:
        """See the base class; by Gaussian conditioning, so the noise must be above 0."""
        return MeasuredGaussians(self, operator, y, noise)


class MeasuredGaussians(GaussianDenoiser):
    """A mixture of Gaussians given y = A x0 + noise eps, which is such a mixture again.

    With S_c = A C_c A^T + noise^2 I, a component's weight, mean and covariance become

        w_c N(y; A mu_c, S_c),    mu_c + C_c A^T S_c^-1 (y - A mu_c),    C_c - C_c A^T S_c^-1 A C_c

    up to one factor of all weights (Bishop 2006, Sec. 2.3.3). The first call makes D^2 numbers a
    component, which calls with as many images go on with.

    Args:
        unmeasured: the denoiser before y was known.
        operator: A, linear, but for a constant.
        y: (B, *measured), one for all queries or one each.
        noise: its standard deviation, above 0.
    """

    def __init__(
        self, unmeasured: GaussianDenoiser, operator: Any, y: torch.Tensor, noise: float
    ) -> None:
        super().__init__(unmeasured.store)
        measured = check_measured(y, noise)
        if noise == 0:
            raise ArgumentError("noise: got 0, but Gaussians need a number above it")
        self.unmeasured, self.operator, self.y, self.noise = unmeasured, operator, y, noise
        made = linear(operator, self.store.shape, tuple(y.shape[1:]))
        self._matrix = made.matrix
        self._values = (measured - made.constant).numpy()[:, made.seen]
        self.batch = max(unmeasured.batch, len(y))
        self._made: tuple[Any, list[Gaussian]] = (None, [])

    def _groups(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels
    ) -> tuple[F32, dict[tuple[float, Any], list[int]]]:
        """As of every denoiser; a prior is that before y, and the measurement of each query."""
        queries, groups = self.unmeasured._groups(x, sigma, labels)
        b = len(self._values)
        if b not in (1, len(queries)):
            raise ArgumentError(f"x: got {len(queries)} images, but {b} measurements were given")
        return queries, {
            (level, (before, tuple(i % b for i in group))): group
            for (level, before), group in groups.items()
        }

    def denoise(self, x: F32, sigma: float, prior: Any) -> F32:
        """Posterior means (b, D), in float64."""
        return self.exact(x, sigma, prior).mean().astype(np.float32)

    def gaussians(self, prior: Any) -> Iterator[Gaussian]:
        """The components given the measurement of each query; those of the last call are kept."""
        if self._made[0] != prior:
            before, which = prior
            made = [self._given(one, list(which)) for one in self.unmeasured.gaussians(before)]
            total = np.logaddexp.reduce([one.log_weight for one in made])
            made = [replace(one, log_weight=one.log_weight - total) for one in made]
            self._made = prior, made
        yield from self._made[1]

    def _given(self, one: Gaussian, which: list[int]) -> Gaussian:
        d, k = one.vectors.shape[0], self._values.shape[1]
        require_memory(24 * d * d, f"a covariance of {d:,} values", "use smaller images")
        root = one.vectors * np.sqrt(one.values)  # C = root root^T
        # S = noise^2 u e u^T, but for directions that are noise alone. Of the values of A C A^T
        # itself, the squares, little noise would be lost in rounding.
        u, singular, axes = np.linalg.svd(self._matrix @ root / self.noise, full_matrices=False)
        e = 1 + singular**2
        residual = (self._values[which] - (self._matrix @ one.mean.T).T) / self.noise
        along = residual @ u
        distance = (along**2 / e).sum(axis=1) + ((residual - along @ u.T) ** 2).sum(axis=1)
        size = np.log(e).sum() + k * math.log(2 * math.pi * self.noise**2)
        moved = one.mean + (along * singular / e) @ axes @ root.T
        root = root - (root @ axes.T * (1 - e**-0.5)) @ axes
        values, vectors = np.linalg.eigh(root @ root.T)
        kept = values > 0
        log_weight = one.log_weight - 0.5 * (distance + size)
        return Gaussian(log_weight, moved, values[kept], vectors[:, kept])
