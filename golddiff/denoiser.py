"""What every denoiser shares: one call, ``D(x, sigma, labels) -> E[x0 | x]``, and its checks."""

from __future__ import annotations

import copy
import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.noise import Labels, Sigma
from golddiff.posterior import Posterior
from golddiff.store.device import DeviceStore, Weigh, device_store
from golddiff.store.images import ImageStore
from golddiff.store.training_set import opened
from golddiff.support import AnySupport, Side, Support, TiledSupport
from golddiff.system.arguments import check_dense, classes_of, levels_of
from golddiff.system.errors import ArgumentError

if TYPE_CHECKING:
    from golddiff.attribution import Attribution
    from golddiff.contributions import Contribution

DEFAULT_MEMORY_LIMIT = 1e9
SIGMAS_KEPT = 128
# Past these noise levels float32 answers are the same, and squares overflow.
LEAST_SIGMA, MOST_SIGMA = 1e-15, 1e16
FURTHEST = 1e7  # times as long as images and noise a query may be; squares would overflow


class Unsaved(dict[Any, Any]):
    """A cache that copies of its owner share, and that a pickle or a deep copy begins empty."""

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return Unsaved, ()


class Denoiser(ABC):
    """A denoiser over a store: x = x0 + sigma * eps in, the posterior mean E[x0 | x] out.

    Convention of EDM and k-diffusion; x0 in [-1, 1]. Queries of one call may differ in sigma and
    in label; work that depends on sigma alone is done once per sigma and kept.
    """

    def __init__(self, store: ImageStore | str | Path) -> None:
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
        return f"{type(self).__name__}({', '.join(words)})"

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
        queries, sigmas, classes = self.checked(x, sigma, labels)
        there = self if x.device.type == "cpu" else self.to(x.device)
        out = np.empty_like(queries)
        for key in dict.fromkeys(zip(sigmas, classes, strict=True)):
            group = [i for i, k in enumerate(zip(sigmas, classes, strict=True)) if k == key]
            out[group] = there.denoise(queries[group], *key)
        return torch.from_numpy(out).reshape(x.shape).to(x.device)

    @abstractmethod
    def denoise(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> NDArray[np.float32]:
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
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> list[tuple[Estimator, AnySupport]]:
        """For each query (b, D): the estimator that weighs images, and which ones it weighs.

        Raises:
            ArgumentError: a method that weighs no training images.
        """
        raise ArgumentError(
            f"denoiser: {type(self).__name__} weighs no training images, so its output has no "
            "sources; expected Optimal, PCA, Kamb or GoldDiff"
        )

    def checked(
        self, x: torch.Tensor, sigma: Sigma, labels: Labels
    ) -> tuple[NDArray[np.float32], list[float], list[int | None]]:
        """The arguments of a call as queries (b, D), and a noise level and a class for each.

        Raises:
            ArgumentError: as a call.
        """
        self.check_shape(x)
        queries = x.detach().to("cpu", torch.float32).reshape(len(x), self.store.d).numpy()
        if not np.isfinite(queries).all():
            bad = int(np.flatnonzero(~np.isfinite(queries).all(axis=1))[0])
            raise ArgumentError(f"x: image {bad} of the batch holds NaN or infinity")
        sigmas = levels_of(sigma, len(x)).clamp(LEAST_SIGMA, MOST_SIGMA)
        lengths = np.sqrt(np.square(queries, dtype=np.float64).sum(axis=1))
        usual = sigmas.numpy() * self.store.d**0.5 + self.store.radius
        bad = int(np.argmax(lengths / usual)) if len(x) else 0
        if len(x) and lengths[bad] > min(FURTHEST * usual[bad], MOST_SIGMA):
            raise ArgumentError(
                f"x: image {bad} of the batch is of norm {lengths[bad]:.3g}; images and noise of "
                f"sigma {sigmas[bad]:g} are of {usual[bad]:.3g}, expected at most "
                f"{FURTHEST:g} times that, and {MOST_SIGMA:g}"
            )
        classes = [None] * len(x) if labels is None else classes_of(labels, len(x)).tolist()
        for label in set(classes):
            self.store.count_of(label)  # raises where the class has no images
        return np.ascontiguousarray(queries), sigmas.tolist(), classes

    def check_shape(self, x: torch.Tensor) -> None:
        """Raise ArgumentError where x is no batch of the store's images in a float type."""
        if not isinstance(x, torch.Tensor):
            raise ArgumentError(f"x: got {type(x).__name__}, expected a torch.Tensor")
        check_dense("x", x)
        if x.ndim != 1 + len(self.store.shape) or tuple(x.shape[1:]) != self.store.shape:
            raise ArgumentError(
                f"x: got shape {tuple(x.shape)}, expected (B, "
                f"{', '.join(map(str, self.store.shape))}) to match the store"
            )
        if not x.is_floating_point():
            raise ArgumentError(f"x: got {x.dtype}, expected a floating-point tensor")


class Estimator(Denoiser):
    """A denoiser that weighs training images: it can run over any support, wherever images are.

    A subclass says how some images weigh (:meth:`weigh`), and what it needs for that of the whole
    training set (:meth:`make_ready`); the rest follows. Where the images lie on other machines, a
    copy of it goes to each of them: there ``images`` are those of that machine, and ``store``, the
    whole, is out of reach.

    Args:
        store: the training set.
        memory_limit: bytes of working memory that a call may take beyond the store's own mapping
            and what is kept for each sigma; larger batches are cut to fit. Default 1e9.

    Attributes:
        images: the part of the training set that lies here.
        tile_sides: of the tiles of outputs that can choose their images each, coarse first; none
            where one choice serves the whole image.
    """

    provable = False  # whether the error of a golden subset has a proved bound (Theorem 1)
    part_size = 512  # images that weigh() is given at a time, at most
    parts = 1  # that a support of some hundred images is cut into, at least

    merges = True  # whether its mean is that of its merged posteriors

    def __init__(self, store: ImageStore, memory_limit: float = DEFAULT_MEMORY_LIMIT) -> None:
        super().__init__(store)
        if not (isinstance(memory_limit, int | float) and memory_limit > 0):
            raise ArgumentError(f"memory_limit: got {memory_limit!r}, expected bytes above 0")
        self.memory_limit = memory_limit
        self.images = self.store
        self.tile_sides: tuple[Side, ...] = ()
        self._ready: dict[float, Any] = Unsaved()

    @abstractmethod
    def weigh(self, x: NDArray[np.float32], sigma: float, part: Support) -> Posterior:
        """The partial posterior of queries (b, D) over a few of ``images``, on this thread alone.

        Args:
            x: queries.
            sigma: noise level.
            part: rows of ``images``, at most ``part_size``.
        """

    def make_ready(self, sigma: float) -> Any:
        """What weighing at a noise level needs that is made of the whole training set.

        Asked for once a noise level, where the whole is; :meth:`ready` gives it.
        """
        return None

    def ready(self, sigma: float) -> Any:
        """What :meth:`make_ready` made for a noise level; the last ``SIGMAS_KEPT`` are kept."""
        if sigma not in self._ready:
            self.take_ready(sigma, self.make_ready(sigma))
        return self._ready[sigma]

    def take_ready(self, sigma: float, made: Any) -> None:
        """Keep what :meth:`make_ready` would make for a noise level, made elsewhere."""
        if len(self._ready) >= SIGMAS_KEPT:
            self._ready.pop(next(iter(self._ready)))
        self._ready[sigma] = made

    def denoise(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> NDArray[np.float32]:
        """Full scan: every image of the store, or of the class."""
        return self.denoise_over(x, sigma, self.store.everything(label))

    def to(self, device: torch.device) -> Estimator:
        """The same, its images weighed on a device; see :meth:`on_device`.

        A subclass that weighs in a way of its own stays here, until it has an ``on_device`` too.
        """
        if not issubclass(_definer(self, "on_device"), _definer(self, "weigh")):
            return self
        made = copy.copy(self)
        made.store = device_store(self.store, device)
        return made

    def on_device(self, sigma: float, store: DeviceStore) -> Weigh | None:
        """What weighs images on a device; None: nothing does, and the processor has to.

        Args:
            sigma: noise level.
            store: keeps what is made there.

        Returns:
            (values (m, D), log weights (m,) or None, queries (b, D)) -> their partial posterior.
        """
        return None

    def denoise_over(
        self,
        x: NDArray[np.float32],
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
    ) -> NDArray[np.float32]:
        """Posterior means (b, D) of queries (b, D); see :meth:`posterior`."""
        return self.posterior(x, sigma, supports).mean().astype(np.float32)

    def posterior(
        self,
        x: NDArray[np.float32],
        sigma: float,
        supports: AnySupport | Sequence[AnySupport],
    ) -> Posterior:
        """The posterior of queries (b, D) over the images of a support, of one each or for all.

        Raises:
            ArgumentError: one query alone needs more than ``memory_limit``; tiles, and the
                estimator has one location.
        """
        return self.store.posterior(self, x, sigma, supports)

    def relevance(self, sigma: float, side: Side | None = None) -> NDArray[np.float32]:
        """How much of each squared difference the logits hold, on average over outputs, (T, D).

        Args:
            sigma: noise level.
            side: of the tiles of outputs that are averaged over, row by row; None: all outputs.

        Returns:
            Shares in [0, 1]. A tile's mean logit is -sum_n share_n (x_n - x_in)^2 / (2 sigma^2).
        """
        return np.ones((1, self.store.d), np.float32)

    def tiled_posterior(
        self, x: NDArray[np.float32], sigma: float, support: TiledSupport
    ) -> Posterior:
        """The partial posterior of queries (b, D), each tile's outputs over the tile's ``images``.

        Raises:
            ArgumentError: an estimator that has no tiles.
        """
        raise ArgumentError(
            f"support: got tiles, but {type(self).__name__} needs one support for the image"
        )

    def estimator_supports(
        self, x: NDArray[np.float32], sigma: float, label: int | None
    ) -> list[tuple[Estimator, AnySupport]]:
        """Itself, over every image of the store or of the class."""
        return [(self, self.store.everything(label))] * len(x)

    def contributions(
        self,
        x: NDArray[np.float32],
        sigma: float,
        support: AnySupport,
        top: int = 1,
        pixel: int | None = None,
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
        raise ArgumentError(
            f"denoiser: {type(self).__name__} does not tell where its output is from"
        )

    @abstractmethod
    def working_bytes(self, images: int) -> tuple[int, int]:
        """Memory that weighing so many images takes: (fixed, for each query)."""


def _definer(estimator: Estimator, method: str) -> type:
    """The class that says what a method of the estimator does."""
    return next(kind for kind in type(estimator).__mro__ if method in vars(kind))


def at_level(estimator: Estimator, sigma: float) -> Estimator:
    """A copy for one noise level without any images: what goes to other machines."""
    made = copy.copy(estimator)
    made._ready = {sigma: estimator.ready(sigma)}
    del made.images, made.store
    return made


def over(estimator: Estimator, images: ImageStore) -> Estimator:
    """The same over other images of the same shape; what is ready stays so."""
    made = copy.copy(estimator)
    made.images = images
    return made
