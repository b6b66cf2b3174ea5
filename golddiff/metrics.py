"""MSE and r2 to a reference, as in Kamb, Lukoianov and the paper; sharpness and speckle."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from golddiff.system.arguments import check_batch
from golddiff.system.errors import ArgumentError


def mse(images: torch.Tensor, reference: torch.Tensor, pixels: bool = True) -> torch.Tensor:
    """Mean of :func:`mse_per_image` over the batch, a scalar tensor, as the paper reports."""
    return mse_per_image(images, reference, pixels).mean()


def r2(images: torch.Tensor, reference: torch.Tensor, pixels: bool = True) -> torch.Tensor:
    """Mean of :func:`r2_per_image` over the batch, a scalar tensor, as the paper reports.

    NaN if any reference image is constant, since r2 is not defined for it.
    """
    return r2_per_image(images, reference, pixels).mean()


def mse_per_image(
    images: torch.Tensor, reference: torch.Tensor, pixels: bool = True
) -> torch.Tensor:
    """Mean squared error of each image.

    Args:
        images: (B, *shape), of any float type.
        reference: (B, *shape), such as a neural oracle's images from the same noise.
        pixels: map both from [-1, 1] to [0, 1] and clip them. False compares values as they are,
            such as latents and points.

    Returns:
        (B,) float64.

    Raises:
        ArgumentError: the shapes differ, or a tensor is not of floats or not finite.
    """
    a, b = _compared(images, reference, pixels)
    return ((a - b) ** 2).mean(dim=1)


def r2_per_image(
    images: torch.Tensor, reference: torch.Tensor, pixels: bool = True
) -> torch.Tensor:
    """Coefficient of determination of each image: 1 - SS_res / (D * var(reference image)).

    The variance is unbiased, over the D values of the reference image. Takes the arguments of
    :func:`mse_per_image` and raises the same errors. Source: Kamb & Ganguli 2024; paper, Sec. 4.1.

    Returns:
        (B,) float64; NaN where the reference image is constant.
    """
    a, b = _compared(images, reference, pixels)
    variance = b.var(dim=1, correction=min(1, b.shape[1] - 1))  # 0 for a single value
    residual = ((a - b) ** 2).sum(dim=1)
    score = 1 - residual / (b.shape[1] * variance)
    return torch.where(variance > 0, score, torch.full_like(score, torch.nan))


def sharpness(images: torch.Tensor, reference: torch.Tensor) -> float:
    """Mean absolute Laplacian, relative to the reference; below 1 is blurred, above 1 is ragged.

    The Laplacian is four times a value minus its four neighbours. Border values are excluded.

    Args:
        images: (B, C, H, W), H and W at least 3.
        reference: (N, C, H, W) images of the same kind, such as training images.

    Returns:
        The ratio; NaN if the reference images are flat.

    Raises:
        ArgumentError: a shape is not as above, or a tensor is not of floats.
    """
    return _ratio(_laplacian, images, reference)


def speckle(images: torch.Tensor, reference: torch.Tensor) -> float:
    """Mean distance to the 3 x 3 median, relative to the reference; above 1 is speckled.

    Takes the arguments of :func:`sharpness`, returns NaN and raises errors as it does.
    """
    return _ratio(_off_median, images, reference)


def _laplacian(x: torch.Tensor) -> torch.Tensor:
    across = x[..., 1:-1, :-2] + x[..., 1:-1, 2:]
    return 4 * x[..., 1:-1, 1:-1] - across - x[..., :-2, 1:-1] - x[..., 2:, 1:-1]


def _off_median(x: torch.Tensor) -> torch.Tensor:
    windows = x.unfold(-2, 3, 1).unfold(-2, 3, 1).flatten(-2)
    return x[..., 1:-1, 1:-1] - windows.median(dim=-1).values


def _ratio(
    measure: Callable[[torch.Tensor], torch.Tensor], images: torch.Tensor, reference: torch.Tensor
) -> float:
    for name, batch in (("images", images), ("reference", reference)):
        check_batch(name, batch, None, "")
        if batch.ndim != 4 or min(batch.shape[2:]) < 3 or len(batch) == 0:
            raise ArgumentError(
                f"{name}: got shape {tuple(batch.shape)}, expected (B, C, H, W) of 3 x 3 or more"
            )
    value, baseline = (
        float(measure(batch.detach().double().cpu()).abs().mean()) for batch in (images, reference)
    )
    return value / baseline if baseline > 0 else math.nan


def _compared(
    images: torch.Tensor, reference: torch.Tensor, pixels: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Both as float64 (B, D); pixels in [0, 1]."""
    check_batch("images", images, None, "")
    check_batch("reference", reference, None, "")
    if images.shape != reference.shape or images.ndim < 2:
        raise ArgumentError(
            f"images: got shape {tuple(images.shape)}, expected the reference's "
            f"{tuple(reference.shape)}, (B, *shape)"
        )
    for name, values in (("images", images), ("reference", reference)):
        if not torch.isfinite(values).all():  # clipped, infinity would pass for white
            raise ArgumentError(f"{name}: holds NaN or infinity")
    a, b = (t.detach().double().cpu().flatten(1) for t in (images, reference))
    return (((a + 1) / 2).clamp(0, 1), ((b + 1) / 2).clamp(0, 1)) if pixels else (a, b)
