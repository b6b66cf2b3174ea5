"""What a picture lost, as operators on images (b, C, H, W): holes, pixels, colours, sharpness.

Each is linear, keeps each value's neighbourhood local, and composes with the others by calling one
after the other. deepinv's physics, or functions of one's own, serve as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch

from golddiff.system.errors import ArgumentError

Operator = Callable[[torch.Tensor], torch.Tensor]

REACH = 3  # widths of a blur that are kept of it on each side


def kept(mask: torch.Tensor) -> Operator:
    """The pixels that a mask (H, W) keeps (true), of all channels: (b, C, pixels kept).

    Raises:
        ArgumentError: another shape; nothing kept, or nothing missing.
    """
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise ArgumentError(f"mask: got {mask.dtype} {tuple(mask.shape)}, expected bool (H, W)")
    if mask.all() or not mask.any():
        raise ArgumentError(f"mask: keeps {int(mask.sum())} of {mask.numel()} pixels")

    def operator(images: torch.Tensor) -> torch.Tensor:
        return images[..., mask]

    return operator


def smaller(factor: int) -> Operator:
    """Averages of squares of ``factor`` pixels a side: (b, C, H / factor, W / factor).

    Raises:
        ArgumentError: a factor that is no whole number of 2 or more.
    """
    if isinstance(factor, bool) or not isinstance(factor, int) or factor < 2:
        raise ArgumentError(f"factor: got {factor!r}, expected a whole number of 2 or more")

    def operator(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(images, factor)

    return operator


def grey(images: torch.Tensor) -> torch.Tensor:
    """The mean of the colours: (b, 1, H, W)."""
    return images.mean(dim=1, keepdim=True)


def blurred(width: float) -> Operator:
    """A Gaussian blur, its standard deviation in pixels; past the edge the edge goes on.

    Raises:
        ArgumentError: a width that is not above 0, or above 100.
    """
    if not isinstance(width, int | float) or not 0 < width <= 100:
        raise ArgumentError(f"width: got {width!r}, expected pixels above 0, at most 100")
    reach = max(1, round(REACH * width))
    line = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / width) ** 2)
    line = line / line.sum()

    def along(size: int) -> torch.Tensor:
        """The blur of a line of pixels as a matrix (size, size)."""
        places = (torch.arange(size)[:, None] + torch.arange(-reach, reach + 1)).clamp(0, size - 1)
        return torch.zeros(size, size).scatter_add_(1, places, line.expand(size, -1))

    def operator(images: torch.Tensor) -> torch.Tensor:
        rows, columns = (along(size).to(images.dtype) for size in images.shape[2:])
        return rows @ images @ columns.T

    return operator


def composed(*operators: Operator) -> Operator:
    """One operator after the other, the first first."""

    def operator(images: torch.Tensor) -> torch.Tensor:
        return reduce(lambda made, one: one(made), operators, images)

    return operator
