"""What is known of clean images given noisy ones, in closed form: what a user holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64, check_count, check_seed

SMALL = 64  # values an image: of fewer the whole covariance is made


class Exact(Protocol):
    """The posterior of some queries that share a noise level and a prior, as arrays."""

    def mean(self) -> F64:
        """(b, D)."""
        ...

    def variance(self) -> F64:
        """(b, D) of each output."""
        ...

    def pull(self, cotangent: F64) -> tuple[F64, F64]:
        """Derivatives of the mean's product with a cotangent (b, D): in x (b, D), in sigma (b,)."""
        ...

    def log_density(self) -> F64:
        """(b,) log of the density of the queries, in nats."""
        ...

    def directions(self, k: int) -> tuple[F64, F64]:
        """The covariance's k largest eigenvalues (b, k), descending, and eigenvectors (b, k, D)."""
        ...

    def draw(self, n: int, seed: int, places: Sequence[int]) -> F32:
        """(n, b, D) samples; each query's hang on its place, and on no other query."""
        ...


class ExactPosterior:
    """The posterior of a batch of queries; what is asked for is computed then, and kept.

    Of Optimal, whose prior is the training images: p(x_i | x) proportional to
    p(x_i) exp(-||x - x_i||^2 / (2 sigma^2)). Of Wiener and GaussianMixture that under their
    Gaussians. PCA and Kamb weigh images anew for every output: they have a mean, a variance and a
    gradient, but no joint posterior. Over a golden support (GoldDiff) the support counts as fixed.
    No gradient flows through what it holds: the mean's is that of a call, the log density's the
    score.
    """

    def __init__(self, parts: Sequence[tuple[list[int], Exact]], x: torch.Tensor, d: int) -> None:
        self._parts, self._d = parts, d
        self._shape, self._device = tuple(x.shape), x.device

    @cached_property
    def mean(self) -> torch.Tensor:
        """E[x0 | x], (B, *shape) float32: what a call of the denoiser returns."""
        return self._images(lambda part: part.mean())

    @cached_property
    def variance(self) -> torch.Tensor:
        """Var[x0 | x] of each value, (B, *shape) float32."""
        return self._images(lambda part: part.variance())

    @cached_property
    def log_density(self) -> torch.Tensor:
        """Log p_sigma(x), (B,) float64, in nats.

        Raises:
            ArgumentError: no joint posterior.
        """
        out = np.empty(self._shape[0])
        for group, part in self._parts:
            out[group] = part.log_density()
        return torch.from_numpy(out).to(self._device)

    def draw(self, n: int, seed: int = 0) -> torch.Tensor:
        """Exact samples of x0 given x, (n, B, *shape) float32.

        The same for a seed on every machine, alone or in shards, and more of them begin with these.

        Args:
            n: samples of each query, 1 or more.
            seed: of the random numbers.

        Raises:
            ArgumentError: n or seed out of range; no joint posterior; more than memory holds.
        """
        n, seed = check_count("n", n), check_seed(seed)
        require_memory(8 * n * math.prod(self._shape), f"n = {n:,} draws", "draw fewer at a time")
        out = np.empty((n, self._shape[0], self._d), np.float32)
        for group, part in self._parts:
            out[:, group] = part.draw(n, seed, group)
        return torch.from_numpy(out).reshape(n, *self._shape).to(self._device)

    def directions(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The main axes of what is uncertain: eigenpairs of the posterior's covariance.

        Args:
            k: how many, 1 to D.

        Returns:
            (values, vectors): (B, k) float64 variances along them, descending, and (B, k, *shape)
            float32 of length 1, the value of largest size positive.

        Raises:
            ArgumentError: k out of range; no joint posterior.
        """
        k = check_count("k", k)
        if k > self._d:
            raise ArgumentError(f"k: got {k}, expected at most {self._d}, the values of an image")
        values = np.empty((self._shape[0], k))
        vectors = np.empty((self._shape[0], k, self._d), np.float32)
        for group, part in self._parts:
            values[group], vectors[group] = part.directions(k)
        shaped = torch.from_numpy(vectors).reshape(self._shape[0], k, *self._shape[1:])
        return torch.from_numpy(values).to(self._device), shaped.to(self._device)

    def pulled(self, cotangent: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Derivatives of the mean's product with a cotangent, in x (B, *shape) and sigma (B,)."""
        u = cotangent.detach().to("cpu", torch.float64).reshape(-1, self._d).numpy()
        in_x, in_sigma = np.empty_like(u), np.empty(len(u))
        for group, part in self._parts:
            in_x[group], in_sigma[group] = part.pull(u[group])
        tensors = torch.from_numpy(in_x).reshape(self._shape), torch.from_numpy(in_sigma)
        return tensors[0].to(self._device), tensors[1].to(self._device)

    def _images(self, what: Callable[[Exact], F64]) -> torch.Tensor:
        out = np.empty((self._shape[0], self._d), np.float32)
        for group, part in self._parts:
            out[group] = what(part)
        return torch.from_numpy(out).reshape(self._shape).to(self._device)


def with_gradient(
    x: torch.Tensor, sigma: Any, posterior: Callable[[torch.Tensor, Any], ExactPosterior]
) -> torch.Tensor:
    """The mean of posterior(x, sigma), with its derivatives in both; a pass more when asked for."""
    made: torch.Tensor = _Mean.apply(x, sigma, posterior, SimpleNamespace())  # type: ignore[no-untyped-call]
    return made


class _Mean(torch.autograd.Function):
    """As ``torch.func`` wants it: x and sigma are plain tensors in ``forward`` alone.

    So the posterior is made there, and ``kept`` for the backward.
    """

    @staticmethod
    def forward(x: torch.Tensor, sigma: Any, make: Any, kept: SimpleNamespace) -> torch.Tensor:
        kept.posterior = make(x.detach(), sigma)
        return kept.posterior.mean.clone()  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        _, ctx.sigma, _, ctx.kept = inputs

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        in_x, in_sigma = _Pull.apply(cotangent, ctx.kept)  # type: ignore[no-untyped-call]
        if not ctx.needs_input_grad[1]:
            return in_x, None, None, None
        return in_x, in_sigma.to(ctx.sigma.device).sum_to_size(ctx.sigma.shape), None, None


class _Pull(torch.autograd.Function):
    @staticmethod
    def forward(cotangent: torch.Tensor, kept: SimpleNamespace) -> Any:
        return kept.posterior.pulled(cotangent)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise ArgumentError("denoiser: got second derivatives to take, expected first ones alone")


def main_directions(times: Callable[[F64], F64], d: int, k: int) -> tuple[F64, F64]:
    """The k largest eigenvalues (k,) and eigenvectors (k, d) of one query's covariance.

    Args:
        times: the covariance (d, d) times vectors (1, d).
        d: values of an image.
        k: 1 to d.
    """
    from scipy.sparse.linalg import LinearOperator, eigsh  # imports slowly

    if k >= d - 1 or d <= SMALL:
        rows = np.stack([times(row[None])[0] for row in np.eye(d)])
        values, columns = np.linalg.eigh((rows + rows.T) / 2)
    else:
        # ARPACK works on the processor's one query; its start is the same everywhere.
        start = np.random.default_rng(0).standard_normal(d)
        if not times(start[None]).any():  # of one image alone, where ARPACK fails
            return np.zeros(k), np.eye(k, d)
        operator = LinearOperator((d, d), lambda v: times(v.reshape(1, d))[0])
        values, columns = eigsh(operator, k, v0=start, tol=1e-9)
    return largest_first(values, columns, k)


def largest_first(values: F64, columns: F64, k: int) -> tuple[F64, F64]:
    """The k largest eigenvalues, >= 0, and their eigenvectors as rows, of signs that are theirs."""
    order = np.argsort(-values)[:k]
    largest = np.abs(columns[:, order]).argmax(axis=0)
    signs = np.sign(columns[largest, order])
    return values[order].clip(min=0), (columns[:, order] * np.where(signs == 0, 1, signs)).T
