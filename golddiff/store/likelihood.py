"""The likelihood of a measurement under every training image, as log weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from golddiff.store.images import opened
from golddiff.store.training_set import TrainingSet
from golddiff.system.arguments import check_dense, check_not_negative
from golddiff.system.errors import ArgumentError, one_line
from golddiff.system.memory import require_memory
from golddiff.system.residency import parts

IMAGES_AT_ONCE = 64  # small enough for the CPU cache
ROUNDING = 1e-6  # of A x_i relative to its norm: it differs between batches, as matrix products do

Operator = Callable[[torch.Tensor], torch.Tensor]


@torch.no_grad()
def log_likelihood(store: Any, operator: Operator, y: torch.Tensor, noise: float) -> torch.Tensor:
    """Log N(y_b; A x_i, noise^2 I) of B measurements under all N images: weights for ``given``.

    Args:
        store: the training set, or the path of a store.
        operator: A, the same for all y: a callable on images (b, *shape) in [-1, 1], or a deepinv
            physics, whose A is used without its noise model. If y was measured from images in
            [0, 1], pass ``lambda x: physics.A((x + 1) / 2)``.
        y: (B, *measured) measurements, each of the shape of A's output for one image.
        noise: standard deviation of the measurement noise, >= 0, in the units of y. At 0, only
            images that fit up to the rounding of float32 remain.

    Returns:
        (B, N) float64 natural logs; at noise 0 they are 0 where A x_i = y up to rounding, or -inf.

    Raises:
        ArgumentError: y is no tensor of floats; the operator fails, or its output is not finite or
            not of y's shape; noise is negative or not finite, or 0 while no image fits; the weights
            do not fit in memory.
    """
    images: TrainingSet = opened(store)
    noise = check_not_negative("noise", noise)
    measured, forward = check_measured(y), as_call(operator)
    require_memory(8 * len(y) * images.n, f"{len(y):,} x {images.n:,} log weights", "use fewer y")
    logs = torch.empty(len(y), images.n, dtype=torch.float64, device="cpu")
    for _, rows in parts(np.arange(images.n), IMAGES_AT_ONCE):
        outputs = applied(forward, images.images(rows), tuple(y.shape[1:])).double()
        outputs = outputs.reshape(len(rows), -1)
        for squares, y_b in zip(logs, measured, strict=True):
            squares[rows] = (outputs - y_b).square().sum(dim=1)
    if noise > 0:
        size = measured.shape[1] * (math.log(noise) + 0.5 * math.log(2 * math.pi))
        return logs.div_(-noise).div_(2 * noise).sub_(size)  # noise^2 may be below 1e-308
    fits = logs <= (ROUNDING * measured.norm(dim=1, keepdim=True)) ** 2
    if not fits.any(dim=1).all():
        raise ArgumentError("noise: got 0, and no image fits a measurement exactly; expected more")
    return torch.where(fits, 0.0, -torch.inf).double()


def check_measured(y: torch.Tensor) -> torch.Tensor:
    """Check measurements and return them as (B, m) float64."""
    expected = "expected a tensor (B, *measured) of finite numbers, B at least 1"
    if not isinstance(y, torch.Tensor):
        raise ArgumentError(f"y: got {type(y).__name__}, {expected}")
    if y.ndim < 1 or not len(y):
        raise ArgumentError(f"y: got shape {tuple(y.shape)}, {expected}")
    _check_real("y", y)
    if not y.is_floating_point():  # bytes would be far from every image
        raise ArgumentError(f"y: got {y.dtype}, expected floats, in units of A x")
    check_dense("y", y)
    if not torch.isfinite(y).all():
        raise ArgumentError(f"y: got NaN or infinity, {expected}")
    return y.detach().to("cpu", torch.float64).reshape(len(y), -1)


def as_call(operator: Any) -> Operator:
    """The operator A of a deepinv physics, or the callable itself."""
    forward: Operator = getattr(operator, "A", operator)
    if not callable(forward):
        raise ArgumentError(
            f"operator: got {type(operator).__name__}, expected a callable on (b, *shape)"
        )
    return forward


def applied(operator: Operator, images: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    """The operator's output for images (b, *), checked to be finite and of shape (b, *shape)."""
    try:
        output = operator(images)
    except Exception as error:  # the caller's code may raise anything
        message = f"operator: fails on {tuple(images.shape)}: {one_line(error, 200)}"
        raise ArgumentError(message) from error
    if not isinstance(output, torch.Tensor) or tuple(output.shape) != (len(images), *shape):
        kind = type(output)
        got = tuple(output.shape) if kind is torch.Tensor else f"{kind.__module__}.{kind.__name__}"
        raise ArgumentError(
            f"operator: got output {got} for images {tuple(images.shape)}, expected "
            f"a tensor {(len(images), *shape)}, the shape of y"
        )
    if not torch.isfinite(output).all():
        raise ArgumentError("operator: got NaN or infinity in its output, expected finite values")
    _check_real("operator", output)
    return output


def _check_real(name: str, values: torch.Tensor) -> None:
    if values.is_complex():  # a conversion to real numbers would drop the imaginary part
        raise ArgumentError(f"{name}: got {values.dtype}, expected reals; use torch.view_as_real")
