"""Random crops, flips and colour changes, applied to batches of images."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.system.numbers import F64

SMALLEST_CROP = 0.7  # smallest crop, as a fraction of each side
CHANGE = 0.2  # largest relative change of brightness, contrast and saturation
TURN = math.radians(10)  # largest rotation of the hue
NUMBERS = 9  # uniform random numbers used per image

LUMINANCE = np.array([0.299, 0.587, 0.114])
# Rotating the two chroma axes of YIQ rotates the hue and keeps the luminance.
_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
_FROM_YIQ = np.linalg.inv(_TO_YIQ)


def augmented(images: NDArray[np.uint8], uniform: F64) -> NDArray[np.uint8]:
    """Crop each image, scale it back, mirror half of them, and change the colours a little.

    A crop keeps 70 to 100 % of both sides at a random position, and is scaled up bilinearly.
    Brightness and contrast change by up to 20 %; in colour images the saturation does too, and the
    hue changes by up to 10 degrees. Every image depends only on its own numbers.

    Args:
        images: (b, C, H, W) uint8, C = 1 or 3.
        uniform: (b, 9) uniform random numbers in [0, 1).
    """
    if len(images) == 0:
        return images  # grid_sample rejects an empty batch
    crop, left, top, mirror, bright, contrast, saturation, hue, _ = uniform.T
    values = torch.from_numpy(images).float()
    scale = SMALLEST_CROP + (1 - SMALLEST_CROP) * crop
    # Affine maps from output to input coordinates, both in [-1, 1].
    theta = np.zeros((len(images), 2, 3), np.float32)
    theta[:, 0, 0] = scale * np.where(mirror < 0.5, -1, 1)
    theta[:, 1, 1] = scale
    theta[:, 0, 2] = (1 - scale) * (2 * left - 1)
    theta[:, 1, 2] = (1 - scale) * (2 * top - 1)
    grid = torch.nn.functional.affine_grid(
        torch.from_numpy(theta), list(values.shape), align_corners=False
    )
    values = torch.nn.functional.grid_sample(
        values, grid, mode="bilinear", padding_mode="border", align_corners=False
    )
    mean = values.mean(dim=(2, 3))
    if values.shape[1] == 3:
        values = _recoloured(values, _change(saturation), TURN * (2 * hue - 1))
        mean = (mean * torch.from_numpy(LUMINANCE).float()).sum(dim=1, keepdim=True)
    gain = torch.from_numpy((_change(bright) * _change(contrast)).astype(np.float32))
    shift = torch.from_numpy((_change(bright) * (1 - _change(contrast))).astype(np.float32))
    values.mul_(gain[:, None, None, None])
    values.add_((shift[:, None] * mean)[:, :, None, None])
    return values.round_().clamp_(0, 255).to(torch.uint8).numpy()


def _change(uniform: F64) -> F64:
    return 1 + CHANGE * (2 * uniform - 1)


def _recoloured(values: torch.Tensor, saturation: F64, turn: F64) -> torch.Tensor:
    """RGB images (b, 3, H, W) with hue rotated, saturation scaled and luminance kept."""
    chroma = np.zeros((len(turn), 3, 3))
    chroma[:, 0, 0] = 1
    chroma[:, 1, 1] = chroma[:, 2, 2] = saturation * np.cos(turn)
    chroma[:, 2, 1] = saturation * np.sin(turn)
    chroma[:, 1, 2] = -chroma[:, 2, 1]
    matrix = torch.from_numpy((_FROM_YIQ @ chroma @ _TO_YIQ).astype(np.float32))
    out = torch.empty_like(values)
    # Elementwise, because the rounding of a matrix product may depend on the number of images.
    for output in range(3):
        torch.mul(values[:, 0], matrix[:, output, 0, None, None], out=out[:, output])
        for source in (1, 2):
            out[:, output] += values[:, source] * matrix[:, output, source, None, None]
    return out
