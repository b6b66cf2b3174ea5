"""A trained network with the call of a denoiser."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from golddiff.denoiser import Labels, Sigma
from golddiff.errors import ArgumentError
from golddiff.sampling import Space

Predict = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


@dataclass(frozen=True)
class Images:
    """What :func:`golddiff.sample` reads of a denoiser's store.

    Attributes:
        shape: (C, H, W).
        is_pixels: whether values lie in [-1, 1].
    """

    shape: tuple[int, int, int]
    is_pixels: bool = True


class NeuralDenoiser(Protocol):
    """What :func:`golddiff.load_oracle` returns, whatever the network.

    Attributes:
        network: its weights.
        shape: (C, H, W).
        num_classes: classes that it was trained with; 0: unconditional.
        sigma_min, sigma_max: the noise levels that it was trained for.
        kind: what it is, in words.
        device: where it runs.
        batch_size: images denoised together.
    """

    network: nn.Module
    shape: tuple[int, int, int]
    num_classes: int
    sigma_min: float
    sigma_max: float
    kind: str
    device: torch.device
    batch_size: int

    @property
    def store(self) -> Space:
        """The shape of an image and the range of its values."""
        ...

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x], as :class:`Oracle`."""
        ...


class Oracle:
    """A trained network as a denoiser ``D(x, sigma, labels) -> E[x0 | x]``.

    Args:
        network: its weights are moved to ``device``, in evaluation mode.
        predict: by means of the network, x0 of x (b, C, H, W) float32 on ``device``, levels (b,)
            float64 on the processor, and int64 labels (b,) on ``device`` or None.
        images: the shape of its images.
        num_classes: classes that it was trained with; 0: unconditional.
        no_class: the label that stands for none, where the network has one.
        kind: what it is, in words.
        sigma_range: lowest and highest noise level that it was trained for.
        device: where it runs.
        batch_size: images denoised together; memory grows with it, results do not depend on it
            but for rounding.

    Attributes:
        store: ``shape`` and ``is_pixels``, which is what a sampler reads of a store.
        shape: (C, H, W).
        network, num_classes, kind, sigma_min, sigma_max, device, batch_size: as given.
    """

    def __init__(
        self,
        network: nn.Module,
        predict: Predict,
        images: Images,
        *,
        num_classes: int = 0,
        no_class: int | None = None,
        kind: str = "network",
        sigma_range: tuple[float, float] = (0.0, math.inf),
        device: str | torch.device = "cpu",
        batch_size: int = 64,
    ) -> None:
        self.network = network.to(device).eval().requires_grad_(False)
        self.store, self.shape, self.kind = images, images.shape, kind
        self.num_classes, self.no_class = num_classes, no_class
        self.sigma_min, self.sigma_max = sigma_range
        self.device, self.batch_size = torch.device(device), batch_size
        self._predict = predict

    @property
    def conditional(self) -> bool:
        """Whether the network takes classes."""
        return self.num_classes > 0

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise a batch.

        Args:
            x: (B, C, H, W) noisy images x0 + sigma * eps, x0 in [-1, 1], any float type and device.
            sigma: noise level > 0, one number or (B,). Below the network's own range the smallest
                level stands in (:meth:`golddiff.oracles.vp.Steps.at`).
            labels: class index for all, or (B,) of them; None for no class.

        Returns:
            (B, C, H, W) float32 on x's device.

        Raises:
            ArgumentError: x of another shape or not finite; sigma not positive and finite, or above
                the network's range; labels of an unconditional network, missing for one that
                cannot do without, or outside its classes.
        """
        self._check_x(x)
        sigmas = levels(sigma, len(x))
        classes = self._classes(labels, len(x))
        made = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        for start in range(0, len(x), self.batch_size):
            part = slice(start, start + self.batch_size)
            made[part] = self._predict(
                x[part].to(self.device, torch.float32),
                sigmas[part],
                None if classes is None else classes[part],
            )
        return made

    def _check_x(self, x: torch.Tensor) -> None:
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise ArgumentError(f"x: got {kind}, expected a floating-point torch.Tensor")
        if tuple(x.shape[1:]) != self.shape:
            raise ArgumentError(
                f"x: got shape {tuple(x.shape)}, expected (B, {', '.join(map(str, self.shape))}) "
                "to match the network"
            )
        if not bool(torch.isfinite(x).all()):
            raise ArgumentError("x: holds NaN or infinity")

    def _classes(self, labels: Labels, b: int) -> torch.Tensor | None:
        if labels is None:
            if not self.conditional:
                return None
            if self.no_class is None:
                raise ArgumentError(
                    "labels: this network takes a class for every image, expected 0 to "
                    f"{self.num_classes - 1}"
                )
            return torch.full((b,), self.no_class, device=self.device)
        if not self.conditional:
            raise ArgumentError("labels: this network was trained without classes, expected None")
        values = classes_of(labels, b)
        outside = values[(values < 0) | (values >= self.num_classes)]
        if outside.numel():
            raise ArgumentError(
                f"labels: got {int(outside.flatten()[0])}, expected 0 to {self.num_classes - 1}"
            )
        return values.to(self.device)

    def __repr__(self) -> str:
        classes = f", {self.num_classes} classes" if self.conditional else ""
        return f"Oracle({self.kind}: {' x '.join(map(str, self.shape))}{classes})"


def classes_of(labels: int | Sequence[int] | torch.Tensor, b: int) -> torch.Tensor:
    """A class index for each of b images, int64 on the processor.

    Raises:
        ArgumentError: no integers; another shape.
    """
    values = torch.as_tensor(labels).cpu()
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ArgumentError(f"labels: got {values.dtype}, expected integers")
    if values.ndim > 1 or (values.ndim == 1 and len(values) not in (1, b)):
        raise ArgumentError(
            f"labels: got shape {tuple(values.shape)}, expected one class or ({b},)"
        )
    return values.long().expand(b)


def levels(sigma: Sigma, b: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """A level for each of b images, on the processor.

    Raises:
        ArgumentError: another shape; not positive and finite.
    """
    values = torch.as_tensor(sigma, dtype=dtype).cpu()
    if values.ndim > 1 or (values.ndim == 1 and len(values) not in (1, b)):
        raise ArgumentError(
            f"sigma: got shape {tuple(values.shape)}, expected one number or ({b},)"
        )
    wrong = values[~(values.isfinite() & (values > 0))]
    if wrong.numel():
        raise ArgumentError(
            f"sigma: got {float(wrong.flatten()[0])}, expected a finite number above 0"
        )
    return values.expand(b)
