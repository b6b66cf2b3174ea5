"""The exact posterior of clean images given noisy ones, as ``Denoiser.posterior`` returns it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch

from golddiff.system.arguments import levels_of
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import F32, F64, check_count, check_seed

DENSE_LIMIT = 64  # up to this many values per image, the whole covariance matrix is formed
STARTS = 10  # starting vectors to try; about one in 100 fails for a posterior of two images


def no_posterior(method: object) -> ArgumentError:
    """The error of a method without a posterior, which a call with gradient may have asked for."""
    return ArgumentError(
        f"posterior: not supported by {type(method).__name__}; expected Optimal, Kamb, PCA with "
        "weighting 'ss', Wiener or GaussianMixture; a call needs it only if x or sigma requires a "
        "gradient"
    )


class Exact(Protocol):
    """The posterior, in NumPy arrays, of b queries that share a noise level and a prior."""

    def mean(self) -> F64:
        """Posterior means (b, D)."""

    def variance(self) -> F64:
        """Variance of each output value, (b, D)."""

    def pull(self, cotangent: F64) -> tuple[F64, F64]:
        """Gradients of mean . cotangent (b, D) with respect to x (b, D) and sigma (b,)."""

    def log_density(self) -> F64:
        """Log density of each query in nats, (b,)."""

    def directions(self, k: int) -> tuple[F64, F64]:
        """The covariance's k largest eigenvalues (b, k), descending, and eigenvectors (b, k, D)."""

    def draw(self, n: int, seed: int, positions: Sequence[int]) -> F32:
        """Samples (n, b, D); ``positions`` are batch positions and select each random stream."""


class ExactPosterior:
    """The posterior of a batch of queries; properties are computed on first use and cached.

    For Optimal, the prior is the training images: p(x_i | x) is proportional to
    p(x_i) exp(-||x - x_i||^2 / (2 sigma^2)). For Wiener and GaussianMixture, it is their Gaussian
    or mixture. PCA and Kamb weigh images separately for every output value: they have a mean, a
    variance and a gradient, but no joint posterior. GoldDiff's golden support is treated as fixed,
    and its log density counts only the images of the support.
    The returned tensors carry no gradient: to differentiate the mean or the log density, call the
    denoiser or its ``log_density``.
    """

    def __init__(self, parts: Sequence[tuple[list[int], Exact]], x: torch.Tensor, d: int) -> None:
        self._parts, self._d = parts, d
        self._shape, self._device = tuple(x.shape), x.device

    @cached_property
    def mean(self) -> torch.Tensor:
        """E[x0 | x], (B, *shape) float32.

        A call that requires a gradient returns it. Other calls of PCA and Kamb use float32 alone
        and differ where the query is far from all images.

        Like the other properties it is the stored tensor, so do not modify it in place.
        """
        return self._collected("mean").float()

    @cached_property
    def variance(self) -> torch.Tensor:
        """Var[x0 | x] of each value, (B, *shape) float32."""
        return self._variance.float()

    @cached_property
    def _variance(self) -> torch.Tensor:
        return self._collected("variance")

    @cached_property
    def log_density(self) -> torch.Tensor:
        """Log p_sigma(x), (B,) float64, in nats.

        Raises:
            ArgumentError: the method has no joint posterior.
        """
        out = np.empty(self._shape[0])
        for group, part in self._parts:
            out[group] = part.log_density()
        return torch.from_numpy(out).to(self._device)

    def draw(self, n: int, seed: int = 0) -> torch.Tensor:
        """Exact samples of x0 given x, (n, B, *shape) float32.

        A seed gives the same samples on every machine, from one store or from shards. A larger n
        extends the sequence of a smaller one.

        Args:
            n: samples of each query, 1 or more.
            seed: seed of the random numbers.

        Raises:
            ArgumentError: n or seed is out of range; the method has no joint posterior; the samples
                do not fit in memory.
        """
        n, seed = check_count("n", n), check_seed(seed)
        require_memory(8 * n * math.prod(self._shape), f"n = {n:,} draws", "draw fewer at a time")
        out = np.empty((n, self._shape[0], self._d), np.float32)
        for group, part in self._parts:
            out[:, group] = part.draw(n, seed, group)
        return torch.from_numpy(out).reshape(n, *self._shape).to(self._device)

    def directions(self, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Principal directions of uncertainty: eigenpairs of the posterior covariance.

        Args:
            k: number of directions, 1 to D.

        Returns:
            (values, vectors): (B, k) float64 variances, descending, and (B, k, *shape) float32
            unit vectors, signed so that the entry of largest magnitude is positive.

        Raises:
            ArgumentError: k is out of range, or the method has no joint posterior.
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
        """Gradients of mean . cotangent with respect to x (B, *shape) and sigma (B,)."""
        u = cotangent.detach().to("cpu", torch.float64).reshape(-1, self._d).numpy()
        in_x, in_sigma = np.empty_like(u), np.empty(len(u))
        for group, part in self._parts:
            in_x[group], in_sigma[group] = part.pull(u[group])
        tensors = torch.from_numpy(in_x).reshape(self._shape), torch.from_numpy(in_sigma)
        return tensors[0].to(self._device), tensors[1].to(self._device)

    def _collected(self, name: str) -> torch.Tensor:
        out = np.empty((self._shape[0], self._d))
        for group, part in self._parts:
            out[group] = getattr(part, name)()
        return torch.from_numpy(out).reshape(self._shape).to(self._device)


def with_gradient(
    x: torch.Tensor, sigma: Any, posterior: Callable[[torch.Tensor, Any], ExactPosterior]
) -> torch.Tensor:
    """The mean of posterior(x, sigma), float64, differentiable in both by one more pass."""
    return _Mean.apply(x, sigma, posterior, SimpleNamespace())  # type: ignore[no-untyped-call]


class _Mean(torch.autograd.Function):
    """The posterior mean as an autograd function that also works under ``torch.func``.

    There, x and sigma are plain tensors only in ``forward``, so ``forward`` computes the posterior
    and stores it in ``memo`` for ``backward``.
    """

    @staticmethod
    def forward(x: torch.Tensor, sigma: Any, posterior: Any, memo: SimpleNamespace) -> torch.Tensor:
        memo.posterior = posterior(x.detach(), sigma)
        return memo.posterior._collected("mean")

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: torch.Tensor) -> None:
        ctx.x, ctx.sigma, _, ctx.memo = inputs

    @staticmethod
    def vmap(info: Any, in_dims: Any, *inputs: Any) -> Any:
        raise ArgumentError("x: got a batch of torch.func.vmap, expected a plain batch")

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        raise ArgumentError("denoiser: got forward-mode derivatives, expected backward ones")

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        in_x, in_sigma = _Pull.apply(cotangent, ctx.memo, ctx.x, ctx.sigma)  # type: ignore[no-untyped-call]
        if not ctx.needs_input_grad[1]:
            return in_x, None, None, None
        return in_x, in_sigma.to(ctx.sigma.device).sum_to_size(ctx.sigma.shape), None, None


class _Pull(torch.autograd.Function):
    """The gradient of the mean, for one cotangent or (by ``torch.func.jacrev``) many at a time.

    x and sigma are inputs so that second derivatives reach ``backward``, which refuses them.
    """

    @staticmethod
    def forward(cotangent: torch.Tensor, memo: SimpleNamespace, x: Any, sigma: Any) -> Any:
        if torch._C._functorch.is_legacy_batchedtensor(cotangent):  # its rows cannot be read
            raise ArgumentError(
                "denoiser: got gradients of autograd with vectorize or is_grads_batched, expected "
                "torch.func.jacrev, or one gradient at a time"
            )
        return memo.posterior.pulled(cotangent)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def vmap(info: Any, in_dims: Any, cotangents: torch.Tensor, *inputs: Any) -> Any:
        each = [_Pull.apply(u, *inputs) for u in cotangents.movedim(in_dims[0], 0)]  # type: ignore[no-untyped-call]
        return tuple(torch.stack(gradients) for gradients in zip(*each, strict=True)), (0, 0)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor) -> Any:
        raise ArgumentError(
            "denoiser: got second derivatives, jvp or hvp, expected first derivatives, vjp or vhp"
        )

    jvp = backward


def needs_gradient(x: object, sigma: object) -> bool:
    """Whether autograd records what is computed from x or sigma."""
    return torch.is_grad_enabled() and any(getattr(a, "requires_grad", False) for a in (x, sigma))


def score_of(mean: torch.Tensor, x: torch.Tensor, sigma: Any) -> torch.Tensor:
    """(mean - x) / sigma^2, (B, *shape) float64, with x rounded to float32 as in a call."""
    levels = torch.as_tensor(sigma, dtype=torch.float64, device=x.device).expand(len(x))
    residual = mean.double() - x.float().double()
    return residual / levels.reshape(-1, *[1] * (x.ndim - 1)).square()


def log_density(
    x: torch.Tensor, sigma: Any, posterior: Callable[[torch.Tensor, Any], ExactPosterior]
) -> torch.Tensor:
    """The log density of posterior(x, sigma), (B,), differentiable in both; in x alone, twice.

    With m the posterior mean and v the sum of the variances, the gradient in x is the score
    (m - x) / sigma^2, and that in sigma is (||x - m||^2 + v) / sigma^3 - D / sigma.
    """
    # Under torch.func, posterior(x, sigma) says what is not supported.
    if torch._C._are_functorch_transforms_active() or not needs_gradient(x, sigma):
        return posterior(x, sigma).log_density
    return _LogDensity.apply(x, sigma, posterior)  # type: ignore[no-untyped-call]


class _LogDensity(torch.autograd.Function):
    """:func:`log_density` as an autograd function."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sigma: Any, posterior: Any) -> Any:
        ctx.posterior = posterior(x.detach(), sigma)
        levels = sigma if isinstance(sigma, torch.Tensor) else levels_of(sigma, len(x))
        ctx.save_for_backward(x, levels)  # backward raises if they were changed in place
        return ctx.posterior.log_density

    @staticmethod
    def backward(ctx: Any, cotangent: torch.Tensor) -> Any:
        if ctx.needs_input_grad[1] and torch.is_grad_enabled():
            raise ArgumentError(
                "log_density: got second derivatives where sigma requires a gradient, expected a "
                "sigma without one"
            )
        x, sigma = ctx.saved_tensors
        score = score_of(with_gradient(x, sigma, lambda *_: ctx.posterior), x, sigma)
        in_x = (cotangent.reshape(-1, *[1] * (x.ndim - 1)) * score).to(x.dtype)
        if not ctx.needs_input_grad[1]:
            return in_x, None, None
        levels, d = sigma.to(x.device, torch.float64).expand(len(x)), x.shape[1:].numel()
        spread = score.square().flatten(1).sum(dim=1) * levels
        variance = ctx.posterior._variance.flatten(1).sum(dim=1)
        in_sigma = cotangent * (spread + variance / levels**3 - d / levels)
        return in_x, in_sigma.to(sigma.device, sigma.dtype).sum_to_size(sigma.shape), None


def main_directions(times: Callable[[F64], F64], d: int, k: int) -> tuple[F64, F64]:
    """The k largest eigenvalues (k,) and eigenvectors (k, d) of one query's covariance.

    ``times`` multiplies vectors (1, d) by the covariance (d, d); k is 1 to d.
    """
    # imports slowly
    from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigsh

    if k >= d - 1 or d <= DENSE_LIMIT:
        rows = np.stack([times(row[None])[0] for row in np.eye(d)])
        values, columns = np.linalg.eigh((rows + rows.T) / 2)
        return largest_first(values, columns, k)
    # Fixed, so results are reproducible.
    starts = [np.random.default_rng(seed).standard_normal(d) for seed in range(STARTS)]
    if not times(starts[0][None]).any():  # a posterior of one image: ARPACK fails on zeros
        return np.zeros(k), np.eye(k, d)
    operator = LinearOperator((d, d), lambda v: times(v.reshape(1, d))[0])
    while True:
        try:
            values, columns = eigsh(operator, k, v0=starts.pop(0), tol=1e-9)
            return largest_first(values, columns, k)
        except ArpackError as error:  # no further direction found, if few images have weight
            if isinstance(error, ArpackNoConvergence) or not starts:
                raise


def largest_first(values: F64, columns: F64, k: int) -> tuple[F64, F64]:
    """The k largest eigenvalues, clipped to >= 0, and eigenvectors as rows of a fixed sign."""
    order = np.argsort(-values)[:k]
    largest = np.abs(columns[:, order]).argmax(axis=0)
    signs = np.sign(columns[largest, order])
    return values[order].clip(min=0), (columns[:, order] * signs).T
