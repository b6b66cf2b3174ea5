"""Degradations as linear operators on images (b, C, H, W): holes, lower resolution, grey, blur.

Operators are local and can be composed. deepinv's physics and user functions work as well.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import torch
from PIL import Image

from golddiff.estimators.measurement import LinearOperator, linear
from golddiff.sources.decode import fit, middle, with_channels
from golddiff.sources.picture import fit_to_shape
from golddiff.store.likelihood import Operator, as_call
from golddiff.system.arguments import LEAST, check_number
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import check_count, is_whole
from golddiff.system.units import shape_text

REACH = 3  # radius of a blur kernel in standard deviations
OPAQUE = 250  # least alpha, of 255, of a known pixel: below 3% of white shines through
TRACE = 0.05  # missing share up to which a pixel counts as known (docs/results/restoring.md)


def kept(mask: torch.Tensor) -> Operator:
    """Selection of the pixels where a mask (H, W) is true, in all channels: (b, C, pixels kept).

    Raises:
        ArgumentError: the mask is not bool (H, W), or keeps all pixels or none.
    """
    if not isinstance(mask, torch.Tensor):
        raise ArgumentError(f"mask: got {type(mask).__name__}, expected a bool tensor (H, W)")
    if mask.ndim != 2 or mask.dtype != torch.bool:
        raise ArgumentError(f"mask: got {mask.dtype} {tuple(mask.shape)}, expected bool (H, W)")
    if mask.all() or not mask.any():
        raise ArgumentError(
            f"mask: keeps {int(mask.sum())} of {mask.numel()} pixels, expected some and not all"
        )
    return lambda images: images[..., mask]


def smaller(factor: int) -> Operator:
    """Average pooling over squares of side ``factor``: (b, C, H / factor, W / factor), rounded
    down: the rows and columns that are left over are ignored.

    Raises:
        ArgumentError: the factor is not a whole number of at least 2.
    """
    if not is_whole(factor) or factor < 2:
        raise ArgumentError(f"factor: got {factor!r}, expected a whole number of 2 or more")
    return lambda images: torch.nn.functional.avg_pool2d(images, int(factor))


def grey(images: torch.Tensor) -> torch.Tensor:
    """The mean of the colours: (b, 1, H, W)."""
    return images.mean(dim=1, keepdim=True)


def blurred(width: float) -> Operator:
    """A Gaussian blur with a standard deviation in pixels; edge pixels are replicated outwards.

    Raises:
        ArgumentError: the width is not above 0, or is above 100.
    """
    width = check_number("width", width, "pixels above 0, at most 100", LEAST, 100)
    reach = max(1, round(REACH * width))
    offsets = torch.arange(-reach, reach + 1, device="cpu")
    kernel = torch.exp(-0.5 * (offsets / width) ** 2)
    kernel = kernel / kernel.sum()

    def blur_matrix(size: int) -> torch.Tensor:
        """The blur of a line of pixels as a matrix (size, size)."""
        positions = torch.arange(size, device="cpu")[:, None] + offsets
        matrix, inside = kernel.new_zeros(size, size), positions.clamp(0, size - 1)
        return matrix.scatter_add_(1, inside, kernel.expand(size, -1))

    def operator(images: torch.Tensor) -> torch.Tensor:
        rows, columns = (blur_matrix(size).to(images) for size in images.shape[2:])
        return rows @ images @ columns.T

    return operator


def composed(*operators: Operator) -> Operator:
    """The composition of operators; the first is applied first."""
    return lambda images: reduce(lambda values, apply: as_call(apply)(values), operators, images)


def erased(image: Image.Image) -> Image.Image | None:
    """A mask that is white where a picture is transparent; None if it is opaque.

    Of a soft eraser's rim the colours are lost too: a picture shows white through it.
    """
    mask = with_channels(image, 4).getchannel("A").point([255] * OPAQUE + [0] * (256 - OPAQUE))
    return mask if mask.getbbox() else None


def _kept_part(image: Image.Image, height: int, width: int) -> str:
    """The part of a picture that :func:`fit` keeps, in words."""
    left, top, right, bottom = map(round, middle(*image.size, width, height))
    return (
        f"the middle {right - left} x {bottom - top} of {image.width} x {image.height} pixels "
        f"(x {left} to {right}, y {top} to {bottom})"
    )


def known_of(
    image: Image.Image,
    shape: tuple[int, ...],
    *,
    missing: Image.Image | None = None,
    upscale: int = 1,
    colours: bool = False,
    blur: float | None = None,
) -> tuple[torch.Tensor, LinearOperator, torch.Tensor]:
    """The known values y of a degraded picture, the operator that degraded it, and y as a picture.

    Args:
        image: the picture; scaled and cropped if it is larger than the known part. Transparent
            pixels are missing.
        shape: shape of the restored pictures, (1 or 3, H, W).
        missing: a picture of the same proportions, black where ``image`` is known; None: all is.
        upscale: factor by which to enlarge, a divisor of H and W.
        colours: whether to restore colours.
        blur: standard deviation of the Gaussian blur to undo, in pixels of the restored picture.

    Raises:
        ArgumentError: no loss is given that can be restored, the picture is too small, or the
            missing part covers all of the kept part or none.
    """
    for name, picture in (("image", image), ("missing", missing)):
        if picture is not None and not isinstance(picture, Image.Image):
            raise ArgumentError(f"{name}: got {type(picture).__name__}, expected a Pillow image")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise ArgumentError(f"data: holds {shape_text(shape)}, expected grey or colour pictures")
    channels, height, width = shape
    upscale = check_count("upscale", upscale)
    lossy: list[Operator] = []
    if colours:
        if channels == 1:
            raise ArgumentError("colours: the training images are grey, so they have none to give")
        channels = 1
        lossy.append(grey)
    if blur is not None:
        lossy.append(blurred(blur))
    if upscale != 1:
        if height % upscale or width % upscale:
            raise ArgumentError(
                f"upscale: got {upscale}, and training images are {width} x {height}; expected "
                "a number that divides both"
            )
        height, width = height // upscale, width // upscale
        lossy.append(smaller(upscale))
    if image.width < width or image.height < height:
        raise ArgumentError(
            f"picture: has {image.width} x {image.height} pixels, expected {width} x {height} or "
            "more (more is scaled and cropped, as training images are)"
        )
    y = fit_to_shape(image, (channels, height, width))
    is_known = torch.ones(height, width, dtype=torch.bool, device="cpu")
    for name, mask in (("transparent part", erased(image)), ("missing part", missing)):
        if mask is None:
            continue
        # In floats, because resampling weights below 0 also spread missing pixels.
        hole = Image.fromarray((np.asarray(mask.convert("L")) > 0).astype(np.float32))
        known_here = torch.from_numpy(np.abs(np.asarray(fit(hole, width, height))) <= TRACE)
        is_known &= known_here
        if not is_known.any() or (mask is missing and known_here.all()):
            raise ArgumentError(
                f"{name}: covers {'all' if not is_known.any() else 'none'} of what is kept, "
                f"{_kept_part(hole, height, width)}"
            )
    enlarged = torch.ones(shape[0] // channels, upscale, upscale, device="cpu")
    known = torch.kron(y * is_known, enlarged)
    if not is_known.all():
        lossy.append(kept(is_known))
        y = y[:, is_known]
    if not lossy:
        raise ArgumentError("hole: the picture lost nothing; say what is missing")
    return y, linear(composed(*lossy), shape, tuple(y.shape)), known
