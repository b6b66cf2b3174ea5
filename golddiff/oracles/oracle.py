"""``Oracle``: a trained network, of any parameterisation, called like a denoiser."""

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
from golddiff.system.arguments import (
    SHOWN,
    as_number,
    check_batch,
    check_device,
    check_positive,
    classes_of,
    levels_of,
)
from golddiff.system.errors import ArgumentError, CheckpointError
from golddiff.system.numbers import check_count, check_shape, is_whole


@dataclass(frozen=True)
class StoreProperties:
    """The two attributes of a denoiser's store that :func:`golddiff.sample` reads."""

    shape: tuple[int, ...]  # shape of one image (C, H, W), or of another array to denoise
    is_pixels: bool = True  # whether values lie in [-1, 1]


class Oracle:
    """Any trained network as a denoiser ``D(x, sigma, labels=None) -> E[x0 | x]``.

    Args:
        module: called as ``module(x_in, t)``; a conditional network as ``module(x_in, t, labels)``
            with int64 labels (B,). Returns a tensor, or an object with the tensor as ``sample``.
            Channels beyond those of x (a learned variance) are dropped. A torch module is moved to
            ``device``, and every call puts it into evaluation mode.
        parameterisation: the training target: "eps", "v", "x0", "flow" (eps - x0) or "edm" (F of
            Karras et al.); or a function of (x, sigma (B, 1, ...), output), all float64, that
            returns x0.
        schedule: how the network is conditioned on the noise. Cumulative alphas (T,) of a VP
            process, or a diffusers scheduler that has them: the input is x / sqrt(1 + sigma^2) and
            t the timestep, an integer or, between two steps, a fraction. "sigma": the input is x
            and t is sigma. A function of sigma (B,): returns the factor of x and t, each (B,) or
            one number. None: DDPM's 1000 linear steps; for "flow" t = sigma / (1 + sigma), for
            "edm" t = log(sigma) / 4.
        scale: factor from golddiff's images, in [-1, 1], to the network's; or a pair (factor,
            shift): (0.5, 0.5) for a network of images in [0, 1].
        shape: shape of one image; required by :func:`golddiff.sample`.
        num_classes: number of classes; 0 for an unconditional network.
        no_class: the label of the unconditional prediction, if the network has one.
        class_names: names of the classes, compared with those of a store in an evaluation.
        is_pixels: whether a sampler may clip predictions to [-1, 1].
        sigma_data: standard deviation of the training images, for "edm".
        sigma_range: lowest and highest noise level of the training; other levels are not refused.
        kind: a short description of the network.
        device: where the network runs; None for the device of the module's weights.
        batch_size: images denoised together. Memory grows with it; results change by rounding only.

    Attributes:
        store: an object with ``shape`` and ``is_pixels``, the part of a store that a sampler reads.
        network: the module; ``shape``, ``num_classes``, ``kind`` and ``device`` are kept too.
        sigma_min: lowest noise level of the training.
        sigma_max: highest noise level of the training.

    Raises:
        ArgumentError: an argument is outside its range, the scheduler contradicts the
            parameterisation, or the device is not available.
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
        class_names: Sequence[str] | None = None,
        is_pixels: bool = True,
        sigma_data: float = 0.5,
        sigma_range: tuple[float, float] | None = None,
        kind: str = "network",
        device: str | torch.device | None = None,
        batch_size: int = 64,
    ) -> None:
        is_class = isinstance(module, type)
        if is_class or not callable(module):
            got = module if is_class else type(module)
            raise ArgumentError(f"module: got {got.__name__}, expected a torch module")
        sigma_data = check_positive("sigma_data", sigma_data)
        self.scale, self.shift = (
            _two_numbers("scale", scale) if isinstance(scale, tuple | list) else (scale, 0.0)
        )
        self.scale = check_positive("scale", self.scale)
        for name, value in (("num_classes", num_classes), ("no_class", no_class or 0)):
            if not is_whole(value) or value < 0:
                raise ArgumentError(f"{name}: got {value!r}, expected an integer of 0 or more")
        self.batch_size = check_count("batch_size", batch_size)
        weights = module.parameters() if isinstance(module, nn.Module) else iter(())
        target = next((w.device for w in weights), "cpu") if device is None else device
        self.device = check_device(target)
        self.parameterisation = find_parameterisation(parameterisation, sigma_data)
        self.schedule = find_schedule(schedule, parameterisation, sigma_data)
        levels = getattr(self.schedule, "sigmas", None)  # only a VP schedule has them
        ends = (0.0, math.inf) if levels is None else (float(levels[0]), float(levels[-1]))
        known = sigma_range or (ends[0] / self.scale, ends[1] / self.scale)
        self.sigma_min, self.sigma_max = _two_numbers("sigma_range", known)
        if self.sigma_min > self.sigma_max:
            raise ArgumentError(f"sigma_range: got {known}, expected the lowest level first")
        if isinstance(module, nn.Module):
            module = module.to(self.device)
        self.network: Any = module
        self.shape = None if shape is None else check_shape("shape", shape)
        self.is_pixels = is_pixels
        self.num_classes, self.no_class, self.kind = num_classes, no_class, kind
        self.class_names = class_names

    @property
    def store(self) -> StoreProperties:
        """The shape of an image, and whether its values are pixels in [-1, 1].

        Raises:
            ArgumentError: the oracle was created without ``shape``.
        """
        if self.shape is None:
            raise ArgumentError("shape: give Oracle(..., shape=(C, H, W)) to sample with it")
        return StoreProperties(self.shape, self.is_pixels)

    @property
    def conditional(self) -> bool:
        """Whether the network takes class labels."""
        return self.num_classes > 0

    @torch.no_grad()
    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """Denoise a batch.

        Args:
            x: (B, *shape) noisy images x0 + sigma * eps, x0 in [-1, 1], any float type and device.
            sigma: noise level > 0, one number or (B,). A VP network uses its first timestep for
                lower levels.
            labels: one class index for all images, or (B,) indices; None for no class.

        Returns:
            (B, *shape) float32 on x's device, without a gradient.

        Raises:
            ArgumentError: x has another shape or is not finite; sigma is not positive and finite,
                or is above the last timestep of a VP network; labels are given to an unconditional
                network, are missing for one without ``no_class``, or are outside its classes.
            CheckpointError: the network returns NaN, infinity or a wrong shape.
        """
        check_batch("x", x, self.shape, "network")
        if x.ndim < 2:
            raise ArgumentError(f"x: got shape {tuple(x.shape)}, expected (B, ...)")
        if not bool(torch.isfinite(x).all()):
            raise ArgumentError("x: holds NaN or infinity")
        sigmas = levels_of(sigma, len(x))
        classes = self._classes(labels, len(x))
        if isinstance(self.network, nn.Module):
            self.network.eval()
        x0 = torch.empty(x.shape, dtype=torch.float32, device=x.device)
        for start in range(0, len(x), self.batch_size):
            part = slice(start, start + self.batch_size)
            x0[part] = self._denoise_part(
                x[part], sigmas[part], None if classes is None else classes[part]
            )
        if not bool(torch.isfinite(x0).all()):
            raise CheckpointError(f"{self.kind}: the network returns NaN or infinity")
        return x0

    def _denoise_part(
        self, x: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        """Denoise checked inputs in one call of the network."""
        dtype = torch.float32 if self.device.type == "mps" else torch.float64  # mps has no float64
        column = (-1, *[1] * (x.ndim - 1))  # (B,) to a shape that broadcasts over images
        x = self.scale * x.to(self.device, dtype) + self.shift
        sigma = self.scale * sigma
        factor, t = (torch.as_tensor(value).expand(len(x)) for value in self.schedule(sigma))
        x_in = (factor.to(self.device, dtype).reshape(column) * x).to(self._weight_dtype())
        if t.is_floating_point():  # half precision cannot tell one timestep from the next
            t = t.to(torch.promote_types(x_in.dtype, torch.float32))
        t = t.to(self.device)
        out = self.network(x_in, t) if labels is None else self.network(x_in, t, labels)
        out = getattr(out, "sample", out)
        fits = isinstance(out, torch.Tensor) and out.ndim == x.ndim
        if not fits or out[:, : x.shape[1]].shape != x.shape:
            returned = tuple(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
            raise CheckpointError(f"{self.kind}: returns {returned} for images {tuple(x.shape)}")
        level = sigma.to(self.device, dtype).reshape(column)
        x0 = self.parameterisation(x, level, out[:, : x.shape[1]].to(dtype))
        return ((x0 - self.shift) / self.scale).float()

    def _weight_dtype(self) -> torch.dtype:
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
            raise ArgumentError("labels: this network was trained without classes; leave them out")
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


def _two_numbers(name: str, pair: Any) -> tuple[float, float]:
    is_pair = isinstance(pair, tuple | list) and len(pair) == 2
    if not is_pair or any(math.isnan(as_number(value)) for value in pair):
        raise ArgumentError(f"{name}: got {pair!r:.{SHOWN}}, expected two numbers")
    return as_number(pair[0]), as_number(pair[1])
