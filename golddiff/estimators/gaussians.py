"""The exact posterior under a mixture of Gaussians, p(x0) = sum_c w_c N(mu_c, C_c).

x = x0 + sigma eps has density sum_c w_c N(x; mu_c, C_c + sigma^2 I). Given its component, x0 is
Gaussian with mean m_c = mu_c + C_c (C_c + sigma^2 I)^-1 (x - mu_c) and covariance
S_c = sigma^2 C_c (C_c + sigma^2 I)^-1; with r_c(x) the share of component c,

    mean m = sum_c r_c m_c          covariance sum_c r_c [S_c + (m_c - m)(m_c - m)^T].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from golddiff.posterior import Float
from golddiff.store.closed_form import main_directions


@dataclass(frozen=True)
class Gaussian:
    """One component.

    Attributes:
        log_weight: log of its share.
        mean: (D,).
        values: (m,) eigenvalues of its covariance above 0.
        vectors: (D, m), their eigenvectors in columns.
    """

    log_weight: float
    mean: Float
    values: Float
    vectors: Float


class GaussiansPosterior:
    """The posterior of queries that share a noise level; see :class:`Exact`.

    Args:
        components: gives them one by one, as often as it is called; only one is held at a time.
        x: (b, D) queries.
        sigma: noise level.
    """

    def __init__(
        self,
        components: Callable[[], Iterator[Gaussian]],
        x: NDArray[np.float32],
        sigma: float,
    ) -> None:
        self._components, self.x, self.sigma = components, x.astype(np.float64), sigma

    @cached_property
    def _seen(self) -> tuple[Float, Float, Float]:
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
    def _shares(self) -> Float:
        shares: Float = np.exp(self._seen[0] - self.log_density()[:, None])
        return shares

    def log_density(self) -> Float:
        """(b,) in nats."""
        density: Float = np.logaddexp.reduce(self._seen[0], axis=1)
        return density

    def mean(self) -> Float:
        """(b, D)."""
        mean: Float = np.einsum("bk,kbd->bd", self._shares, self._seen[2])
        return mean

    def variance(self) -> Float:
        """(b, D) of each value."""
        spread = (self._seen[2] - self.mean()) ** 2
        total: Float = np.einsum("bk,kbd->bd", self._shares, spread)
        for share, one in zip(self._shares.T, self._components(), strict=True):
            total += share[:, None] * (one.vectors**2 @ self._kept(one))
        return total

    def times(self, vectors: Float) -> Float:
        """The posterior's covariance times vectors (b, D)."""
        off = self._seen[2] - self.mean()
        total: Float = np.einsum(
            "bk,kbd,bk->bd", self._shares, off, np.einsum("kbd,bd->bk", off, vectors)
        )
        for share, one in zip(self._shares.T, self._components(), strict=True):
            total += share[:, None] * (((vectors @ one.vectors) * self._kept(one)) @ one.vectors.T)
        return total

    def pull(self, cotangent: Float) -> tuple[Float, Float]:
        """Derivatives of the mean's product with a cotangent: in x (b, D), in sigma (b,)."""
        _, slopes, means = self._seen
        slopes = slopes - (self._shares * slopes).sum(axis=1, keepdims=True)
        in_sigma = (self._shares * slopes * np.einsum("kbd,bd->bk", means, cotangent)).sum(axis=1)
        for share, one in zip(self._shares.T, self._components(), strict=True):
            along = (self.x - one.mean) @ one.vectors * (cotangent @ one.vectors)
            gains = -2 * self.sigma * one.values / (one.values + self.sigma**2) ** 2
            in_sigma += share * (along @ gains)
        return self.times(cotangent) / self.sigma**2, in_sigma

    def directions(self, k: int) -> tuple[Float, Float]:
        """The covariance's k largest eigenvalues (b, k), descending, and eigenvectors (b, k, D)."""
        alone = [
            GaussiansPosterior(self._components, row[None], self.sigma).times for row in self.x
        ]
        return main_directions(alone, self.x.shape[1], k)

    def draw(self, n: int, seed: int, places: Sequence[int]) -> NDArray[np.float32]:
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

    def _kept(self, one: Gaussian) -> Float:
        """(m,) eigenvalues of S_c."""
        kept: Float = self.sigma**2 * one.values / (one.values + self.sigma**2)
        return kept
