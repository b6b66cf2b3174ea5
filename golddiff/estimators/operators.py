"""What a picture lost, as operators on images (b, C, H, W): holes, pixels, colours, sharpness.

Each is linear, keeps each value's neighbourhood local, and composes with the others by calling one
after the other. deepinv's physics, or functions of one's own, serve as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from PIL import Image

from golddiff.estimators.measurement import LinearOperator, linear
from golddiff.sources.picture import covering, fitted
from golddiff.system.arguments import as_number
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import is_whole

Operator = Callable[[torch.Tensor], torch.Tensor]

REACH = 3  # widths of a blur that are kept of it on each side
TRACE = 0.05  # share of a pixel that may be missing, and it is known (docs/results/restoring.md)


def kept(mask: torch.Tensor) -> Operator:
    """The pixels that a mask (H, W) keeps (true), of all channels: (b, C, pixels kept).

    Raises:
        ArgumentError: another shape; nothing kept, or nothing missing.
    """
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise ArgumentError(f"mask: got {mask.dtype} {tuple(mask.shape)}, expected bool (H, W)")
    if mask.all() or not mask.any():
        raise ArgumentError(
            f"mask: keeps {int(mask.sum())} of {mask.numel()} pixels, expected some and not all"
        )

    def operator(images: torch.Tensor) -> torch.Tensor:
        return images[..., mask]

    return operator


def smaller(factor: int) -> Operator:
    """Averages of squares of ``factor`` pixels a side: (b, C, H / factor, W / factor).

    Raises:
        ArgumentError: a factor that is no whole number of 2 or more.
    """
    if not is_whole(factor) or factor < 2:
        raise ArgumentError(f"factor: got {factor!r}, expected a whole number of 2 or more")

    def operator(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(images, int(factor))

    return operator


def grey(images: torch.Tensor) -> torch.Tensor:
    """The mean of the colours: (b, 1, H, W)."""
    return images.mean(dim=1, keepdim=True)


def blurred(width: float) -> Operator:
    """A Gaussian blur, its standard deviation in pixels; past the edge the edge goes on.

    Raises:
        ArgumentError: a width that is not above 0, or above 100.
    """
    if not 0 < as_number(width) <= 100:
        raise ArgumentError(f"width: got {width!r}, expected pixels above 0, at most 100")
    reach = max(1, round(REACH * width))
    offsets = torch.arange(-reach, reach + 1, device="cpu")
    line = torch.exp(-0.5 * (offsets / width) ** 2)
    line = line / line.sum()

    def along(size: int) -> torch.Tensor:
        """The blur of a line of pixels as a matrix (size, size)."""
        places = torch.arange(size, device="cpu")[:, None] + offsets
        whole, nearest = line.new_zeros(size, size), places.clamp(0, size - 1)
        return whole.scatter_add_(1, nearest, line.expand(size, -1))

    def operator(images: torch.Tensor) -> torch.Tensor:
        rows, columns = (along(size).to(images) for size in images.shape[2:])
        return rows @ images @ columns.T

    return operator


def composed(*operators: Operator) -> Operator:
    """One operator after the other, the first first."""

    def operator(images: torch.Tensor) -> torch.Tensor:
        return reduce(lambda made, one: one(made), operators, images)

    return operator


def known_of(
    image: Image.Image,
    shape: tuple[int, ...],
    *,
    missing: Image.Image | None = None,
    upscale: int = 1,
    colours: bool = False,
    blur: float | None = None,
) -> tuple[torch.Tensor, LinearOperator]:
    """What is known of a picture that lost something, and the operator that loses it.

    Args:
        image: the picture, of at least the size that is known of it; else scaled and cropped.
        shape: of the whole pictures, (1 or 3, H, W).
        missing: a picture of the same proportions, black where it is known; None: everywhere.
        upscale: how many times too small it is, a divisor of H and W.
        colours: it has lost them.
        blur: a Gaussian's standard deviation that it is blurred by, in pixels of the whole.

    Raises:
        ArgumentError: it has lost nothing, or what such pictures cannot lose; it is too small.
    """
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ArgumentError(f"data: holds {shape}, expected grey or colour pictures")
    channels, height, width = shape
    lost: list[Operator] = []
    if colours:
        if channels == 1:
            raise ArgumentError("colours: the training images are grey, so they have none to give")
        channels = 1
        lost.append(grey)
    if blur is not None:
        lost.append(blurred(blur))
    if upscale != 1:
        if height % upscale or width % upscale:
            raise ArgumentError(
                f"upscale: got {upscale}, and training images are {width} x {height}; expected "
                "a number that divides both"
            )
        height, width = height // upscale, width // upscale
        lost.append(smaller(upscale))
    if image.width < width or image.height < height:
        raise ArgumentError(
            f"picture: has {image.width} x {image.height} pixels, expected {width} x {height} or "
            "more (more is scaled and cropped, as training images are)"
        )
    y = fitted(image, (channels, height, width))
    if missing is not None:
        # In floats: some weights are below 0, and what is missing shows there, too.
        painted = Image.fromarray((np.asarray(missing.convert("L")) > 0).astype(np.float32))
        share = np.asarray(covering(painted, height, width))
        known = torch.from_numpy(np.abs(share) <= TRACE)
        lost.append(kept(known))
        y = y[:, known]
    if not lost:
        raise ArgumentError("hole: the picture lost nothing; say what is missing")
    return y, linear(composed(*lost), shape, tuple(y.shape))
