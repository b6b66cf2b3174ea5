"""What every denoiser shares: one call, ``D(x, sigma, labels) -> E[x0 | x]``, and its checks."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch

from golddiff.kernels.terms import Known, Terms
from golddiff.noise import Labels, Sigma
from golddiff.posterior import Posterior
from golddiff.store.closed_form import Exact, ExactPosterior, with_gradient
from golddiff.store.device import DeviceStore, Weigh, device_store
from golddiff.store.exact import ImagesPosterior
from golddiff.store.images import StoreOrPath, opened
from golddiff.store.likelihood import log_likelihood
from golddiff.store.posteriors import Unsaved
from golddiff.store.queries import added_priors, checked_queries, priors_of
from golddiff.support import AnySupport, LogWeights, Prior, Side, Support, TiledSupport
from golddiff.system.arguments import as_number, classes_of
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import F32, F64
from golddiff.system.parallel import IN_FLIGHT

if TYPE_CHECKING:
    from golddiff.attribution import Attribution
    from golddiff.kernels.contributions import Contribution

DEFAULT_MEMORY_LIMIT = 1e9
SIGMAS_KEPT = 128


class Denoiser(ABC):
    """A denoiser over a store: x = x0 + sigma * eps in, the posterior mean E[x0 | x] out.

    Convention of EDM and k-diffusion; x0 in [-1, 1]. Queries may differ in sigma and label.
    """

    priors: tuple[LogWeights, ...] = ()  # what was given, one for all queries or one each
    batch = 1  # images of every call, where something was given for each of them; 1: any number
    weighs_images = False  # whether its output is made of training images by their weights

    def __init__(self, store: StoreOrPath) -> None:
        self.store = opened(store)

    def __repr__(self) -> str:
        """The constructor's call, without what has its default."""
        words = []
        for name, parameter in inspect.signature(type(self)).parameters.items():
            value = getattr(self, name, parameter.default)
            if parameter.default is parameter.empty:
                words.append(repr(value))
            elif value is not parameter.default and value != parameter.default:
                words.append(f"{name}={value!r}")
        made = f"{type(self).__name__}({', '.join(words)})"
        return f"{made}.given(...)" if self.priors else made

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise a batch.

        Args:
            x: (B, *store.shape) noisy images, any float type, any device. On a GPU the work is
                done there, where the method can be (docs/guides/gpu.md), else on the CPU.
            sigma: noise level > 0 in units of x0 (x0 in [-1, 1]); one number or (B,).
            labels: class index for all, or (B,) of them: only that class's images are used.

        Returns:
            (B, *store.shape) float32 on x's device.

        Raises:
            ArgumentError: x of another shape, not finite, or ten million times as long as images
                and noise are; sigma not positive and finite; a label that no image has.
        """
        if torch.is_grad_enabled() and any(getattr(a, "requires_grad", False) for a in (x, sigma)):
            return with_gradient(x, sigma, partial(self.posterior, labels=labels))
        queries, groups = self._groups(x, sigma, labels)
        there = self if x.device.type == "cpu" else self.to(x.device)
        out = np.empty_like(queries)
        for key, group in groups.items():
            out[group] = there.denoise(queries[group], *key)
        return torch.from_numpy(out).reshape(x.shape).to(x.device)

    def given(self, log_weights: Any) -> Self:
        """The same denoiser under further evidence: a log weight for every training image.

        Its prior p(x_i) becomes proportional to p(x_i) exp(log_weights_i), by Bayes' rule; labels
        are the case of 0 and -inf. What was given before stays: log weights add up.

        Args:
            log_weights: (N,) natural logs, or (B, N) for batches of B queries; -inf excludes.

        Raises:
            ArgumentError: another shape, NaN, +inf, or all images excluded; a method that weighs
                no training images, or whose error is proved.
        """
        self._check_weighs("given")
        made = copy.copy(self)
        made.priors = added_priors(self.store, self.priors, log_weights)
        made.batch = len(made.priors)
        return made

    def given_measurement(self, operator: Any, y: torch.Tensor, noise: float) -> Denoiser:
        """The same given y = A x0 + noise eps, by :func:`golddiff.log_likelihood` as log weights.

        Its arguments are those of that function. Wiener and GaussianMixture condition their
        Gaussians instead: there A has to be linear, and the noise above 0.

        Raises:
            ArgumentError: as :meth:`given` and :func:`golddiff.log_likelihood`.
        """
        return self.given(log_likelihood(self.store, operator, y, noise))

    def _check_weighs(self, what: str) -> None:
        if not self.weighs_images:
            raise ArgumentError(
                f"{what}: {type(self).__name__} does not weigh training images; expected a method "
                "that does, such as Optimal, PCA, Kamb or GoldDiff"
            )

    def posterior(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> ExactPosterior:
        """All that is known of x0 given x, in closed form; its arguments are those of a call.

        Raises:
            ArgumentError: as a call; a method that is no posterior in closed form, such as SCFDM.
        """
        queries, groups = self._groups(x, sigma, labels)
        parts = [(group, self.exact(queries[group], *key)) for key, group in groups.items()]
        return ExactPosterior(parts, x, self.store.d)

    def log_density(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Log p_sigma(x), (B,) float64 in nats; see :attr:`ExactPosterior.log_density`.

        Raises:
            ArgumentError: as :meth:`posterior`; a method without a joint posterior (PCA, Kamb).
        """
        return self.posterior(x, sigma, labels).log_density

    def score(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """(D(x) - x) / sigma^2, (B, *shape) float32: the gradient of :meth:`log_density`, if any.

        Raises:
            ArgumentError: as a call.
        """
        off = self(x, sigma, labels).double() - x.double()
        levels = torch.as_tensor(sigma, dtype=torch.float64, device=x.device).expand(len(x))
        return (off / levels.reshape(-1, *[1] * (x.ndim - 1)).square()).float()

    def exact(self, x: F32, sigma: float, prior: Prior) -> Exact:
        """The posterior of queries (b, D) that share sigma and prior.

        Raises:
            ArgumentError: a method that is no posterior under one prior.
        """
        self._check_weighs("posterior")
        pairs = self.estimator_supports(x, sigma, prior)
        everything = self.store.everything(prior)
        weights = everything.log_weights
        log_prior = np.log(len(everything)) if weights is None else np.logaddexp.reduce(weights)
        return ImagesPosterior(pairs[0][0], x, sigma, [s for _, s in pairs], float(log_prior))

    def _groups(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels
    ) -> tuple[F32, dict[tuple[float, Prior], list[int]]]:
        """Queries (b, D), and which of them share noise level and prior."""
        queries, sigmas, priors = self.checked(x, sigma, labels)
        groups: dict[tuple[float, Prior], list[int]] = {}
        for i, key in enumerate(zip(sigmas, priors, strict=True)):
            groups.setdefault(key, []).append(i)
        return queries, groups

    @abstractmethod
    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Posterior means (b, D) of queries (b, D) that share sigma and label."""

    def to(self, device: torch.device) -> Denoiser:
        """The same denoiser with its images on a device; a method that has none stays as it is."""
        return self

    def attribute(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels = None, top: int = 16, tile: int = 4
    ) -> list[Attribution]:
        """Which training images, and with what weight, every location of the output comes from.

        Args:
            x: (B, *store.shape) noisy images.
            sigma: noise level, as in a call.
            labels: classes, as in a call.
            top: main sources to keep for each location.
            tile: side in pixels of the squares that weights are also averaged over.

        Returns:
            One :class:`golddiff.attribution.Attribution` a query.

        Raises:
            ArgumentError: as in a call; a method that weighs no training images (Wiener).
        """
        from golddiff.attribution import attribute  # its kernels import slowly

        queries, sigmas, classes = self.checked(x, sigma, labels)
        return [
            attribute(
                *self.estimator_supports(query[None], level, label)[0], query, level, top, tile
            )
            for query, level, label in zip(queries, sigmas, classes, strict=True)
        ]

    def estimator_supports(
        self, x: F32, sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """For each query (b, D): the estimator that weighs images, and which ones it weighs.

        Raises:
            ArgumentError: a method that weighs no training images.
        """
        raise ArgumentError(
            f"denoiser: {type(self).__name__} weighs no training images, so its output has no "
            "sources; expected a method that does, such as Optimal, PCA, Kamb or GoldDiff"
        )

    def checked(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels
    ) -> tuple[F32, list[float], list[Prior]]:
        """The arguments of a call, checked: queries (b, D), a noise level and a prior for each."""
        queries, sigmas = checked_queries(self.store, x, sigma)
        classes = [None] * len(x) if labels is None else classes_of(labels, len(x)).tolist()
        return queries, sigmas, priors_of(self.store, self.priors, classes)


class Estimator(Denoiser):
    """A denoiser that weighs training images: it can run over any support, wherever images are.

    A subclass says how some images weigh (:meth:`weigh`), and what it needs for that of the whole
    training set (:meth:`make_ready`). Where images lie on other machines, a copy goes to each:
    there ``images`` are those of that machine, and ``store``, the whole, is out of reach.

    Args:
        store: the training set.
        memory_limit: bytes of working memory that a call may take beyond the store's own mapping
            and what is kept for each sigma; larger batches are cut to fit. Default 1e9.

    Attributes:
        images: the part of the training set that lies here.
        sums: V, the values that images give to the sums of outputs: D, or more, for ``joining``.
        joining: makes outputs (b, D) of means (b, V), as :mod:`golddiff.estimators.seamless` does;
            None where those are the outputs.
        tile_sides: of the tiles of outputs that can choose their images each, coarse first; none
            where one choice serves the whole image.
    """

    weighs_images = True
    provable = False  # whether the error of a golden subset has a proved bound (Theorem 1)
    part_size = 512  # images that weigh() is given at a time, at most
    in_flight = IN_FLIGHT  # partial posteriors that wait to be merged, for each thread
    one_logit = False  # whether an image has one for all outputs: weighing all is comparing all
    merges = True  # whether its mean is that of its merged posteriors
    joint = False  # whether its outputs have one posterior together; see Optimal's methods

    def __init__(self, store: StoreOrPath, memory_limit: float = DEFAULT_MEMORY_LIMIT) -> None:
        super().__init__(store)
        if not as_number(memory_limit) > 0:
            raise ArgumentError(f"memory_limit: got {memory_limit!r}, expected bytes above 0")
        self.memory_limit = memory_limit
        self.images, self.sums = self.store, self.store.d
        self.joining: Any = None
        self.tile_sides: tuple[Side, ...] = ()
        self._ready: dict[float, Any] = Unsaved()

    @abstractmethod
    def weigh(self, x: F32, sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a part of ``images``, on this thread alone.

        ``part`` has at most ``part_size`` rows.
        """

    def make_ready(self, sigma: float) -> Any:
        """What a noise level needs of the whole training set: made once, where the whole is.

        :meth:`ready` gives it.
        """
        return None

    def ready(self, sigma: float, made: Any = None) -> Any:
        """What :meth:`make_ready` made for a noise level, or ``made``; the last ones are kept."""
        if sigma not in self._ready:
            if len(self._ready) >= SIGMAS_KEPT:
                self._ready.pop(next(iter(self._ready)))
            self._ready[sigma] = self.make_ready(sigma) if made is None else made
        return self._ready[sigma]

    def denoise(self, x: F32, sigma: float, prior: Prior) -> F32:
        """Full scan: every image of the store, or of the class."""
        return self.denoise_over(x, sigma, self.store.everything(prior))

    def to(self, device: torch.device) -> Estimator:
        """The same, its images weighed on a device by :meth:`on_device`.

        A subclass that weighs in a way of its own stays here, until it has one of its own too.
        """
        if not issubclass(_definer(self, "on_device"), _definer(self, "weigh")):
            return self
        made = copy.copy(self)
        made.store = device_store(self.store, device)
        return made

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh | None:
        """What weighs images on a device; None: nothing does, and the processor has to.

        ``store`` keeps what is made there.

        Returns:
            (values (m, D), log weights (m,) or None, queries (b, D)) -> their partial posterior.
        """
        return None

    def denoise_over(
        self, x: F32, sigma: float, supports: AnySupport | Sequence[AnySupport]
    ) -> F32:
        """Posterior means (b, D) of queries (b, D), each over its support.

        Raises:
            ArgumentError: one query needs more than ``memory_limit``; tiles for one location.
        """
        self.ready(sigma)  # once, before each thread asks for it
        means = self.store.posterior(self, x, sigma, supports).mean()
        return self.composed(means, sigma).astype(np.float32)

    def composed(self, means: F64, sigma: float) -> F64:
        """The outputs (n, D) that posterior means of :meth:`weigh` make; here they are them."""
        joined: F64 = means if self.joining is None else self.joining.joined(means)
        return joined

    def terms(
        self, x: torch.Tensor, gain: torch.Tensor, sigma: float, part: Support, known: Known
    ) -> Terms:
        """The logits of a part of ``images`` for queries (b, D), to take derivatives from.

        ``x`` is float64, ``gain`` (b, 1) 1 / (2 sigma^2); ``known`` is of the posterior, by an
        earlier pass.

        Raises:
            ArgumentError: an estimator that does not tell its logits.
        """
        raise ArgumentError(f"denoiser: {type(self).__name__} has no posterior in closed form")

    def relevance(self, sigma: float, side: Side | None = None) -> F32:
        """How much of each squared difference the logits hold, (T, D) shares in [0, 1].

        A tile's mean logit is -sum_n share_n (x_n - x_in)^2 / (2 sigma^2). ``side`` is that of the
        tiles, row by row; None: all outputs are one.
        """
        return np.ones((1, self.store.d), np.float32)

    def tiled_posterior(self, x: F32, sigma: float, support: TiledSupport) -> Posterior:
        """The partial posterior of queries (b, D), each tile's outputs over the tile's ``images``.

        Raises:
            ArgumentError: an estimator that has no tiles.
        """
        raise ArgumentError(
            f"support: got tiles, but {type(self).__name__} needs one support for the image"
        )

    def estimator_supports(
        self, x: F32, sigma: float, prior: Prior
    ) -> list[tuple[Estimator, AnySupport]]:
        """Itself, over every image that the prior lets in."""
        return [(self, self.store.everything(prior))] * len(x)

    def contributions(
        self, x: F32, sigma: float, support: AnySupport, top: int = 1, pixel: int | None = None
    ) -> Iterator[Contribution]:
        """The terms of one query's posterior (D,), some of ``images`` at a time.

        Args:
            x: (D,) query.
            sigma: noise level.
            support: the images that it is compared with, in rows of ``images``.
            top: (image, position) pairs to rank, where a source is one (Kamb).
            pixel: y * W + x; only the locations and outputs of this pixel. None: all.

        Raises:
            ArgumentError: an estimator that cannot tell its terms apart.
        """
        raise ArgumentError(f"denoiser: {type(self).__name__} does not tell its output's sources")

    @abstractmethod
    def working_bytes(self, images: int) -> tuple[int, int]:
        """Memory that so many images take: (fixed, for each query)."""


def _definer(estimator: Estimator, method: str) -> type:
    """The class that says what a method of the estimator does."""
    return next(kind for kind in type(estimator).__mro__ if method in vars(kind))
