"""Crops of the photographs that ship with scikit-learn: any number of real images, no download."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from golddiff.sources.decode import to_pixels, with_channels
from golddiff.sources.source import Rows
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError

_DEFAULT_SIZE = 32
_DEFAULT_COUNT = 10_000

# Examples are drawn by the block, each from its own generator, so that example i depends on
# nothing but the seed, the size and i.
_BLOCK = 1024

_TRIES = 4  # crops that an example is chosen from

# Neighbouring scales differ by this factor, the smallest shows half of a photograph's height.
_STEP = 2**-0.25


def shipped(*parts: str) -> Path:
    """A file of scikit-learn's data sets, without importing it, which takes seconds."""
    package = find_spec("sklearn")
    assert package is not None
    return Path(str(package.origin)).parent.joinpath("datasets", *parts)


def open_patches(options: SourceOptions) -> Rows:
    """Random crops of two photographs, at several scales, half of them mirrored.

    Each is the one of most contrast of four: plain sky would be half of what is seen.

    Args:
        options: ``size`` is the side of a crop (32), ``limit`` their number (10,000), ``seed``
            chooses them. Example i depends on seed, size and i alone.
    """
    side, channels = options.size or _DEFAULT_SIZE, options.channels or 3
    planes = _pyramid(side, channels)
    room = np.array([plane.shape[1:] for plane in planes]) - side + 1

    def crops(start: int, stop: int) -> NDArray[np.uint8]:
        out = np.empty((stop - start, channels, side, side), np.uint8)
        for block in range(start // _BLOCK, (stop - 1) // _BLOCK + 1):
            shares = np.random.default_rng([options.seed, side, block]).random((_BLOCK, 3, _TRIES))
            first = block * _BLOCK
            for i in range(max(start, first) - first, min(stop - first, _BLOCK)):
                which = (shares[i, 0] * len(planes)).astype(np.int64)
                corners = (shares[i, 1:].T * room[which]).astype(np.int64)
                tried = [
                    planes[plane][:, top : top + side, left : left + side]
                    for plane, (top, left) in zip(which, corners, strict=True)
                ]
                out[first + i - start] = max(tried, key=_contrast)
        return out

    description = f"patches of photographs, seed {options.seed}"
    total = options.limit or _DEFAULT_COUNT
    return Rows(crops, total, (channels, side, side), np.uint8, options, description)


def _contrast(crop: NDArray[np.uint8]) -> int:
    """The variance of its values, times their number squared: in integers, so without rounding."""
    values = crop.astype(np.int64)
    return crop.size * int((values * values).sum()) - int(values.sum()) ** 2


def _pyramid(side: int, channels: int) -> list[NDArray[np.uint8]]:
    """The photographs at each scale, as they are and mirrored: (C, H, W) each, H, W >= side."""
    planes: list[NDArray[np.uint8]] = []
    for photograph in ("china.jpg", "flower.jpg"):
        image = with_channels(Image.open(shipped("images", photograph)), channels)
        scale = max(1.0, side / min(image.size))
        if image.size[0] * image.size[1] * scale * scale > 1 << 26:
            raise ArgumentError("size is too large for the built-in patches; give at most 5000")
        smallest = min(scale, max(side / min(image.size), 2 * side / max(image.size)))
        while scale >= smallest:
            width, height = (max(side, round(length * scale)) for length in image.size)
            pixels = to_pixels(image.resize((width, height), Image.Resampling.LANCZOS))
            planes += [pixels, np.ascontiguousarray(pixels[:, :, ::-1])]
            scale *= _STEP
    return planes
