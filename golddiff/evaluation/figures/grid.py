"""A grid of images."""

from __future__ import annotations

import math

import torch
from PIL import Image

from golddiff.evaluation.figures.images import enlarged, mosaic, to_pixels

WIDTH = 512
GAP = 2


def draw_grid(images: torch.Tensor, columns: int | None = None) -> Image.Image:
    """Images in reading order, as square a grid as they fill, at least 512 pixels wide.

    Args:
        images: (n, C, H, W) in [-1, 1]; grey images give a grey picture.
        columns: images in a row; default the square root of n, rounded up.
    """
    pixels = to_pixels(images)
    columns = min(len(pixels), columns or math.ceil(math.sqrt(len(pixels))))
    factor = max(1, math.ceil((WIDTH - GAP * (columns + 1)) / (columns * pixels.shape[2])))
    return Image.fromarray(mosaic(enlarged(pixels, factor), columns, GAP))
