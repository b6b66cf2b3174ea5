"""The base classes of all denoisers: the call ``D(x, sigma, labels) -> E[x0 | x]``."""

from __future__ import annotations

import copy
import inspect
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import torch

from golddiff.attribution import Attribution, attribute
from golddiff.kernels.contributions import Contribution
from golddiff.noise import Labels, Sigma
from golddiff.posterior import Posterior
from golddiff.store.closed_form import (
    Exact,
    ExactPosterior,
    log_density,
    needs_gradient,
    no_posterior,
    score_of,
    with_gradient,
)
from golddiff.store.device import Device, DeviceStore, Weigh, device_store
from golddiff.store.exact import ImagesPosterior
from golddiff.store.images import StoreOrPath, opened
from golddiff.store.likelihood import log_likelihood
from golddiff.store.posteriors import TransientCache, check_supports
from golddiff.store.queries import added_priors, checked_queries, priors_of
from golddiff.support import AnySupport, LogWeights, Prior, Side, Support, Supports, TiledSupport
from golddiff.system.arguments import LEAST, check_number, classes_of
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64
from golddiff.system.parallel import keep_newest

DEFAULT_MEMORY_LIMIT = 1e9
SIGMAS_CACHED = 128


class Denoiser:
    """Maps x = x0 + sigma * eps to the posterior mean E[x0 | x] over the images of a store.

    Convention of EDM and k-diffusion, x0 in [-1, 1]. Queries may differ in sigma and label.
    """

    priors: tuple[LogWeights, ...] = ()  # set by given(): one for all queries, or one per query
    batch = 1  # required batch size if given() got one prior per query; 1 allows any batch size
    weighs_images = False  # whether the output is a weighted mean of training images
    needs_images = False  # whether the store must hold images (C, H, W), not points

    def __init__(self, store: StoreOrPath) -> None:
        self.store = opened(store)
        if self.needs_images and len(self.store.shape) != 3:
            shape, name = self.store.shape, type(self).__name__
            raise ArgumentError(f"{name} needs images (C, H, W), got data of shape {shape}")

    def __repr__(self) -> str:
        """The constructor call, without arguments that have their default value."""
        arguments = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if value is parameter.empty:  # which the object does not keep
                continue
            if parameter.default is parameter.empty:
                arguments.append(repr(value))
            elif repr(value) != repr(parameter.default):
                arguments.append(f"{name}={value!r}")
        call = f"{type(self).__name__}({', '.join(arguments)})"
        return f"{call}.given(...)" if self.priors else call

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise a batch.

        Args:
            x: (B, *store.shape) noisy images, any device; of any float type, rounded to float32. On
                a GPU, methods that support it run there (see the guide to GPUs), others on the CPU.
            sigma: noise level > 0 in units of x0 (x0 in [-1, 1]); one number or (B,).
            labels: class index, one or (B,); a query then uses only the images of its class.

        Returns:
            (B, *store.shape) float32 on x's device.

        Raises:
            ArgumentError: x has another shape, is not finite, or has more than ten million times
                the norm of images plus noise; sigma is not positive and finite; unknown label.
        """
        if torch.compiler.is_compiling():  # compiled loops cannot be traced
            return torch.compiler.disable(self.__call__)(x, sigma, labels)  # type: ignore[no-untyped-call]
        if needs_gradient(x, sigma):
            return with_gradient(x, sigma, partial(self.posterior, labels=labels)).float()
        queries, groups = self._groups(x, sigma, labels)
        denoiser = self if x.device.type == "cpu" else self.to(x.device)
        out = denoiser._denoise_groups(queries, groups)
        return torch.from_numpy(out).reshape(x.shape).to(x.device)

    def given(self, log_weights: Any) -> Self:
        """A copy of the denoiser with a log weight added to the prior of every training image.

        By Bayes' rule, the prior p(x_i) becomes proportional to p(x_i) exp(log_weights_i). A label
        is the special case of weights 0 and -inf. Log weights of repeated calls add up.

        Args:
            log_weights: (N,) natural logs, or (B, N) for batches of B; -inf excludes an image.

        Raises:
            ArgumentError: log_weights have another shape, hold NaN or +inf, or exclude all images;
                the method weighs no training images, or guarantees its error.
        """
        if not self.weighs_images:
            raise self._weighs_none("given")
        denoiser = copy.copy(self)
        denoiser.priors = added_priors(self.store, self.priors, log_weights)
        denoiser.batch = len(denoiser.priors)
        return denoiser

    def given_measurement(self, operator: Any, y: torch.Tensor, noise: float) -> Denoiser:
        """A copy of the denoiser conditioned on a measurement y = A x0 + noise eps.

        The log weights are :func:`golddiff.log_likelihood`, which takes the same arguments. Wiener
        and GaussianMixture condition their Gaussians instead; they need noise > 0 and an A that is
        linear, plus a constant.

        Raises:
            ArgumentError: as in :meth:`given` and :func:`golddiff.log_likelihood`.
        """
        if not self.weighs_images:
            raise self._weighs_none("given_measurement", ", or Wiener or GaussianMixture")
        return self.given(log_likelihood(self.store, operator, y, noise))

    def _weighs_none(self, name: str, more: str = "") -> ArgumentError:
        return ArgumentError(
            f"{name}: not supported by {type(self).__name__}; expected a method that weighs "
            f"training images, such as Optimal, PCA, Kamb or GoldDiff{more}"
        )

    def posterior(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> ExactPosterior:
        """The exact posterior of x0 given x; takes the arguments of a call.

        Raises:
            ArgumentError: as in a call; the method has no closed-form posterior (such as SCFDM).
        """
        queries, groups = self._groups(x, sigma, labels)
        parts = [(group, self.exact(queries[group], *key)) for key, group in groups.items()]
        return ExactPosterior(parts, x, self.store.d)

    def log_density(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Log p_sigma(x), (B,) float64 in nats, differentiable in x (twice) and sigma.

        Raises:
            ArgumentError: as in :meth:`posterior`; no joint posterior exists (PCA, Kamb).
        """
        return log_density(x, sigma, partial(self.posterior, labels=labels))

    def score(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """(D(x) - x) / sigma^2, (B, *shape) float32: the gradient of :meth:`log_density`, if any.

        Raises:
            ArgumentError: as in a call.
        """
        return score_of(self(x, sigma, labels), x, sigma).float()

    def exact(self, x: F32, sigma: float, prior: Prior) -> Exact:
        """The exact posterior of queries (b, D) that share sigma and prior.

        Raises:
            ArgumentError: the output is not a posterior mean under a single prior.
        """
        if not self.weighs_images:
            raise no_posterior(self)
        estimator, supports = self.estimator_supports(x, sigma, prior)
        everything = self.store.everything(prior)
        weights = everything.log_weights
        log_prior = np.log(len(everything)) if weights is None else np.logaddexp.reduce(weights)
        return ImagesPosterior(estimator, x, sigma, supports, float(log_prior))

    def _groups(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels
    ) -> tuple[F32, dict[tuple[float, Prior], list[int]]]:
        """Checked queries (B, D), and the indices of the queries of each (sigma, prior)."""
        queries, sigmas, priors = self.checked(x, sigma, labels)
        groups: dict[tuple[float, Prior], list[int]] = {}
        for i, key in enumerate(zip(sigmas, priors, strict=True)):
            groups.setdefault(key, []).append(i)
        return queries, groups

    def _denoise_groups(self, x: F32, groups: dict[tuple[float, Prior], list[int]]) -> F32:
        """Posterior means (B, D) of queries in groups that share sigma and prior."""
        out = np.empty_like(x)
        for key, group in groups.items():
            denoised: Any = self.denoise(x[group], *key)
            found, expected = getattr(denoised, "shape", type(denoised)), (len(group), x.shape[1])
            if found != expected:
                name = type(self).__name__
                raise ArgumentError(f"denoise: {name} returned {found}, expected {expected}")
            out[group] = denoised
        return out

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Posterior means (b, D) of queries (b, D) that share sigma and prior.

        By default those of :meth:`estimator_supports`; other methods override one of the two.
        """
        estimator, supports = self.estimator_supports(x, sigma, prior)
        return estimator.denoise_over(x, sigma, supports)

    def to(self, device: Device) -> Denoiser:
        """The denoiser with its images on a device; itself if the method runs only on the CPU."""
        return self

    def attribute(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None, top: int = 16
    ) -> list[Attribution]:
        """The training images, and their weights, behind every location of the output.

        Takes the arguments of a call, and ``top``, the number of main sources to keep for each
        location. Returns one :class:`golddiff.attribution.Attribution` per query.

        Raises:
            ArgumentError: as in a call; the method weighs no training images (Wiener).
        """
        return [
            attribute(estimator, support, query, level, top)
            for estimator, support, query, level, _ in self.supported(x, sigma, labels)
        ]

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """The estimator that weighs images, and the support it weighs for each query (b, D).

        Raises:
            ArgumentError: the method weighs no training images.
        """
        raise self._weighs_none("attribution")

    def supported(self, x: torch.Tensor, sigma: Sigma, labels: Labels) -> list[Any]:
        """Each query's (estimator, support, query, sigma, prior); one search per sigma, prior."""
        queries, groups = self._groups(x, sigma, labels)
        found: dict[int, Any] = {}
        for key, group in groups.items():
            estimator, supports = self.estimator_supports(queries[group], *key)
            for i, support in zip(group, supports, strict=True):
                found[i] = estimator, support, queries[i], *key
        return [found[i] for i in range(len(queries))]

    def checked(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels
    ) -> tuple[F32, list[float], list[Prior]]:
        """Check the arguments of a call; return queries (B, D), their sigmas and their priors."""
        queries, sigmas = checked_queries(self.store, x, sigma)
        classes = [None] * len(x) if labels is None else classes_of(labels, len(x)).tolist()
        return queries, sigmas, priors_of(self.store, self.priors, classes)


class Estimator(Denoiser, ABC):
    """A denoiser that weighs training images, over any support and wherever the images are.

    Subclasses implement :meth:`weigh`, which weighs a few images, and optionally
    :meth:`make_ready`, which computes what a noise level needs from the whole training set. For a
    sharded store each machine gets a copy: ``images`` is its shard, and ``store`` is unavailable.

    Args:
        store: the training set.
        memory_limit: bytes of working memory per call, excluding the memory-mapped store and the
            cache for each sigma. Batches are split, and fewer threads used, to fit. Default 1e9.

    Attributes:
        images: the images on this machine: the training set, or one shard of it.
        n_values: V, the number of values that an image contributes: D, or more with ``seamless``.
        seamless: maps means (b, V) to outputs (b, D), :mod:`golddiff.estimators.seamless`; or None.
        tile_sides: sides of tiles of outputs that may each have a support, largest first; or empty.
    """

    weighs_images = True
    part_size = 512  # maximum number of images per call of weigh()
    merges = True  # whether the output is the mean of the merged partial posteriors
    joint = False  # whether the posterior is that of all images under noise in every value of x

    def __init__(self, store: StoreOrPath, memory_limit: float = DEFAULT_MEMORY_LIMIT) -> None:
        super().__init__(store)
        limit = check_number("memory_limit", memory_limit, "bytes above 0", LEAST, math.inf)
        self.memory_limit = min(limit, sys.maxsize)  # inf is no limit
        self.images, self.n_values = self.store, self.store.d
        self.seamless: Any = None
        self.tile_sides: tuple[Side, ...] = ()
        self._ready: dict[float, Any] = TransientCache()

    @abstractmethod
    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a part of ``images``.

        ``part`` has at most ``part_size`` rows. Must stay in its thread: parts run in parallel.
        """

    def make_ready(self, sigma: float) -> Any:
        """Compute what a noise level needs from the whole training set, such as masks.

        Called once per sigma, where ``store`` is available; read the result with :meth:`ready`.
        """
        return None

    def ready(self, sigma: float, value: Any = None) -> Any:
        """The cached :meth:`make_ready` of a noise level; on a miss, caches ``value`` if given."""
        found = self._ready.get(sigma, ...)
        if found is ...:
            found = self._ready[sigma] = self.make_ready(sigma) if value is None else value
            keep_newest(self._ready, SIGMAS_CACHED)
        return found

    def to(self, device: Device) -> Estimator:
        """A copy whose images are weighed on a device, such as "cuda", by :meth:`on_device`."""
        estimator = copy.copy(self)
        estimator.store = device_store(self.store, device)
        return estimator

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh | None:
        """The function that weighs images on a device; None if only the CPU can.

        ``store`` caches the tensors created on the device.

        Returns:
            (values (m, D), log weights (m,) or None, queries (b, D)) -> the tensors ``Sums`` of
            :mod:`golddiff.kernels.torch_kernels`.
        """
        return None

    def denoise_over(self, x: F32, sigma: float, supports: Supports) -> F32:
        """Posterior means (b, D) of queries (b, D), each over its support.

        Raises:
            ArgumentError: the supports do not fit the queries and the store, or no image has a
                weight; too little memory is free; the estimator does not support tiles.
        """
        check_supports(supports, len(x), self.store.n)
        posterior = self.store.posterior(self, x, sigma, supports)
        if not np.all(posterior.total > 0):
            raise ArgumentError(
                "posterior: the images' weights are NaN or all 0; a value is too large, or the "
                "store is damaged (golddiff info STORE --verify)"
            )
        return self.composed(self.means(x, sigma, supports, posterior), sigma).astype(np.float32)

    def means(self, x: F32, sigma: float, supports: Supports, posterior: Posterior) -> F64:
        """The means (b, V) of a posterior over the supports of queries (b, D)."""
        return posterior.mean()

    def composed(self, means: F64, sigma: float) -> F64:
        """Map means (n, V) of :meth:`weigh` to outputs (n, D); by default with ``seamless``."""
        return means if self.seamless is None else self.seamless.outputs(means)

    def relevance(self, sigma: float, side: Side | None = None) -> F32:
        """The share in [0, 1] of each squared difference in each tile's mean logit, (T, D).

        A tile's mean logit is -sum_n share_n (x_n - x_in)^2 / (2 sigma^2). Tiles have side ``side``
        and are in row-major order; None is a single tile of all outputs.
        """
        return np.ones((1, self.store.d), np.float32)

    def tiled_posterior(self, x: F32, sigma: float, support: TiledSupport) -> Posterior:
        """The partial posterior of queries (b, D), with a separate support for each tile.

        Raises:
            ArgumentError: the estimator does not support tiles.
        """
        raise ArgumentError(
            f"support: got tiles, but {type(self).__name__} needs one support for the image"
        )

    def estimator_supports(self, x: F32, sigma: float, prior: Prior) -> EstimatorSupports:
        """This estimator, over every image that the prior allows."""
        return self, [self.store.everything(prior)] * len(x)

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query's posterior, one block of ``images`` at a time.

        Args:
            x: (D,) query.
            sigma: noise level.
            support: the images to weigh, as rows of ``images``.
            top: number of (image, position) pairs to rank, if sources have positions (Kamb).
            pixel: y * W + x, to get only the locations and outputs of this pixel; None: all.

        Raises:
            ArgumentError: the estimator does not implement attribution.
        """
        raise ArgumentError(f"denoiser: {type(self).__name__} does not support attribution")

    @abstractmethod
    def working_bytes(self, images: int) -> tuple[int, int]:
        """Bytes that :meth:`weigh` needs for a part of ``images`` images, and for each query."""


EstimatorSupports = tuple[Estimator, Sequence[AnySupport]]
