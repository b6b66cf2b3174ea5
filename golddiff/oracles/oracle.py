"""A trained network with the call of a denoiser, however it was trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from golddiff.noise import Labels, Sigma
from golddiff.oracles.parameterisations import (
    Parameterisation,
    find_parameterisation,
    find_schedule,
)
from golddiff.system.arguments import check_batch, check_positive, classes_of, levels_of
from golddiff.system.errors import ArgumentError, CheckpointError, one_line
from golddiff.system.numbers import check_count


@dataclass(frozen=True)
class Images:
    """What :func:`golddiff.sample` reads of a denoiser's store."""

    shape: tuple[int, ...]  # (C, H, W), or of whatever the network denoises
    is_pixels: bool = True  # whether values lie in [-1, 1]


class Oracle:
    """Any trained network as a denoiser ``D(x, sigma, labels=None) -> E[x0 | x]``.

    Args:
        module: called as ``module(x_in, t)``, or ``module(x_in, t, labels)`` with int64 labels (B,)
            where it has classes; returns a tensor, or an object that has it as ``sample``. Channels
            beyond those of x (a learned variance) are dropped. A torch module is put into
            evaluation mode on ``device``.
        parameterisation: what it was trained to return: "eps", "v", "x0", "flow" (eps - x0) or
            "edm" (Karras et al.'s F), or a function that gives x0 of x, sigma (B, 1, ...) and the
            output, in float64.
        schedule: what it sees and is given of the noise: cumulative alphas (T,) of a VP process, or
            a diffusers scheduler that has them (it sees x / sqrt(1 + sigma^2) and is given the
            timestep); "sigma" (x as it is, and sigma); or a function of sigma (B,) that gives the
            factor of x and what the network gets, both (B,). None: DDPM's 1000 linear steps; for
            "flow" t = sigma / (1 + sigma), for "edm" log(sigma) / 4.
        scale: the network's images are ``scale`` times golddiff's, which lie in [-1, 1]; or a pair,
            scale and shift: (0.5, 0.5) for a network of images in [0, 1].
        shape: of one image, which :func:`golddiff.sample` needs.
        num_classes: classes that it was trained with; 0: unconditional.
        no_class: the label that stands for none, where the network has one.
        is_pixels: whether predictions may be clipped to [-1, 1] by a sampler.
        sigma_data: of "edm": the standard deviation of its training images.
        sigma_range: lowest and highest noise level that it was trained for.
        kind: what it is, in words.
        device: where it runs; None: where the module's weights are.
        batch_size: images denoised together; memory grows with it, results do not depend on it
            but for rounding.

    Attributes:
        store: ``shape`` and ``is_pixels``, which is what a sampler reads of a store.
        network, shape, num_classes, kind, sigma_min, sigma_max, device, batch_size: as given.

    Raises:
        ArgumentError: an argument outside its range; a device that is not there.
    """

    def __init__(
        self,
        module: nn.Module | Callable[..., Any],
        parameterisation: str | Parameterisation = "eps",
        schedule: Any = None,
        scale: float | tuple[float, float] = 1.0,
        *,
        shape: Sequence[int] | None = None,
        num_classes: int = 0,
        no_class: int | None = None,
        is_pixels: bool = True,
        sigma_data: float = 0.5,
        sigma_range: tuple[float, float] | None = None,
        kind: str = "network",
        device: str | torch.device | None = None,
        batch_size: int = 64,
    ) -> None:
        if not callable(module):
            raise ArgumentError(f"module: got {type(module).__name__}, expected a torch module")
        check_positive("sigma_data", sigma_data)
        self.scale, self.shift = scale if isinstance(scale, tuple) else (scale, 0.0)
        check_positive("scale", self.scale)
        self.batch_size = check_count("batch_size", batch_size)
        weights = module.parameters() if isinstance(module, nn.Module) else iter(())
        place = next((w.device for w in weights), "cpu") if device is None else device
        self.device = torch.device(checked_device(place))
        self.parameterisation = find_parameterisation(parameterisation, sigma_data)
        self.schedule = find_schedule(schedule, parameterisation, sigma_data)
        known = getattr(self.schedule, "sigmas", None)  # of VP's steps
        ends = (0.0, math.inf) if known is None else (float(known[0]), float(known[-1]))
        self.sigma_min, self.sigma_max = sigma_range or (ends[0] / self.scale, ends[1] / self.scale)
        if isinstance(module, nn.Module):
            module = module.to(self.device).eval()
        self.network: Any = module
        self.shape = None if shape is None else tuple(shape)
        self.is_pixels = is_pixels
        self.num_classes, self.no_class, self.kind = num_classes, no_class, kind

    @property
    def store(self) -> Images:
        """The shape of an image and the range of its values.

        Raises:
            ArgumentError: the oracle was made without ``shape``.
        """
        if self.shape is None:
            raise ArgumentError("shape: give Oracle(..., shape=(C, H, W)) to sample with it")
        return Images(self.shape, self.is_pixels)

    @property
    def conditional(self) -> bool:
        """Whether the network takes classes."""
        return self.num_classes > 0

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise a batch.

        Args:
            x: (B, *shape) noisy images x0 + sigma * eps, x0 in [-1, 1], any float type and device.
            sigma: noise level > 0, one number or (B,). Below the lowest of a network's steps that
                one stands in (:meth:`golddiff.oracles.parameterisations.Steps.at`).
            labels: class index for all, or (B,) of them; None for no class.

        Returns:
            (B, *shape) float32 on x's device, without a gradient.

        Raises:
            ArgumentError: x of another shape or not finite; sigma not positive and finite, or above
                the network's range; labels of an unconditional network, missing for one that
                cannot do without, or outside its classes.
            CheckpointError: the network returns NaN, infinity, or something of another shape.
        """
        check_batch("x", x, self.shape, "network")
        if x.ndim < 2:
            raise ArgumentError(f"x: got shape {tuple(x.shape)}, expected (B, ...)")
        if not bool(torch.isfinite(x).all()):
            raise ArgumentError("x: holds NaN or infinity")
        sigmas = levels_of(sigma, len(x))
        classes = self._classes(labels, len(x))
        made = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        for start in range(0, len(x), self.batch_size):
            part = slice(start, start + self.batch_size)
            made[part] = self._denoised(
                x[part], sigmas[part], None if classes is None else classes[part]
            )
        if not bool(torch.isfinite(made).all()):
            raise CheckpointError(f"{self.kind}: the network returns NaN or infinity")
        return made

    def _denoised(
        self, x: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        exact = torch.float32 if self.device.type == "mps" else torch.float64
        wide = (-1, *[1] * (x.ndim - 1))
        x = self.scale * x.to(self.device, exact) + self.shift
        sigma = self.scale * sigma
        factor, noise = self.schedule(sigma)
        seen = (factor.to(self.device, exact).reshape(wide) * x).to(self._dtype())
        if noise.is_floating_point():  # half precision cannot tell one timestep from the next
            noise = noise.to(torch.promote_types(seen.dtype, torch.float32))
        noise = noise.to(self.device)
        out = self.network(seen, noise) if labels is None else self.network(seen, noise, labels)
        out = getattr(out, "sample", out)
        if not isinstance(out, torch.Tensor) or out[:, : x.shape[1]].shape != x.shape:
            found = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise CheckpointError(f"{self.kind}: returns {found} for images {tuple(x.shape)}")
        level = sigma.to(self.device, exact).reshape(wide)
        x0 = self.parameterisation(x, level, out[:, : x.shape[1]].to(exact))
        return ((x0 - self.shift) / self.scale).float()

    def _dtype(self) -> torch.dtype:
        weights = self.network.parameters() if isinstance(self.network, nn.Module) else ()
        return next((w.dtype for w in weights if w.is_floating_point()), torch.float32)

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
        shape = "any shape" if self.shape is None else " x ".join(map(str, self.shape))
        return f"Oracle({self.kind}: {shape}{classes})"


def checked_device(device: str | torch.device) -> str:
    """The device's name, once a tensor could be put there."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ArgumentError(
            f"device: got {device!r}, which is not there ({one_line(error, 120)})"
        ) from error
    return str(device)
