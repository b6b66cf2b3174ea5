"""Images as pixels to draw: values to uint8, integer enlargement, mosaics."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

WHITE = 255


def to_pixels(images: torch.Tensor) -> Pixels:
    """Pixels to draw: (n, H, W) grey, or (n, H, W, 3) colour.

    Args:
        images: (n, C, H, W); 1 or 3 channels in [-1, 1], clipped. Any other number of channels
            (latents) is drawn as the mean over the channels, black to white from the smallest
            value to the largest.
    """
    channels = images.shape[1]
    values = images.detach().float().cpu()
    if channels not in (1, 3):
        values = values.mean(dim=1, keepdim=True)
        low, high = values.min(), values.max()
        values = (values - low) / max(float(high - low), 1e-12) * 2 - 1
    scaled = ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).numpy()
    pixels: Pixels = scaled[:, 0] if scaled.shape[1] == 1 else scaled.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels)


def enlarged(pixels: Pixels, factor: int) -> Pixels:
    """Each pixel of (n, H, W) or (n, H, W, 3) as a square of ``factor`` by ``factor``."""
    return pixels.repeat(factor, axis=1).repeat(factor, axis=2)


def enlarged_to(pixels: Pixels, side: int) -> Pixels:
    """Enlarged by the smallest whole factor that makes the images at least ``side`` wide."""
    return enlarged(pixels, max(1, math.ceil(side / pixels.shape[2])))


def mosaic(pixels: Pixels, columns: int, gap: int) -> Pixels:
    """Images in rows of ``columns``, in reading order, white between them and at the edge.

    Args:
        pixels: (n, H, W) or (n, H, W, 3).
        columns: images in a row.
        gap: pixels between images, and around them all.
    """
    n, height, width = pixels.shape[:3]
    rows = math.ceil(n / columns)
    shape = (rows * (height + gap) + gap, columns * (width + gap) + gap, *pixels.shape[3:])
    out = np.full(shape, WHITE, np.uint8)
    for i, image in enumerate(pixels):
        top, left = gap + i // columns * (height + gap), gap + i % columns * (width + gap)
        out[top : top + height, left : left + width] = image
    return out


def as_colour(pixels: Pixels) -> Pixels:
    """Grey (..., H, W) as (..., H, W, 3); colour as it is."""
    if pixels.ndim >= 3 and pixels.shape[-1] == 3:
        return pixels
    return np.repeat(pixels[..., None], 3, axis=-1)
