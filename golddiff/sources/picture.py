"""One picture that a person brings: read within limits, and in a training set's shape."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from golddiff.sources.decode import (
    UnreadableImageError,
    decode,
    read_header,
    to_image,
    with_channels,
)
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError

MOST_BYTES = 40_000_000
MOST_PIXELS = 40_000_000
KEPT_SIDE = 1024  # larger pictures are made smaller: no training set in use has larger images
_one_at_a_time = threading.Lock()  # the largest takes half a gigabyte while it is decoded


def read_picture(name: str, path: str | Path, ground: str = "white") -> Image.Image:
    """A file as a picture, grey or RGB, refused from its size or header before it is decoded.

    Where it is transparent the ground shows.
    """
    place = path_of(name, path)
    try:
        size = place.stat().st_size
        if size > MOST_BYTES:
            raise ArgumentError(
                f"{name}: the file has {size / 1e6:,.0f} MB, expected at most "
                f"{MOST_BYTES / 1e6:.0f} MB"
            )
        return decoded(name, place.read_bytes(), ground=ground)
    except OSError as error:
        reason = error.strerror or error
        raise ArgumentError(f"{name}: the file cannot be read: {reason}") from error


def decoded(
    name: str, data: bytes, most_pixels: int = MOST_PIXELS, ground: str = "white"
) -> Image.Image:
    """An encoded picture, as :func:`read_picture`."""
    try:
        header = read_header(data)
        pixels = header.width * header.height
        if pixels > most_pixels:
            raise ArgumentError(
                f"{name}: the image has {header.width:,} x {header.height:,} pixels "
                f"({pixels / 1e6:,.0f} megapixels), expected at most "
                f"{most_pixels / 1e6:.2g} megapixels; make it smaller first"
            )
        with _one_at_a_time:
            image = to_image(decode(data, ground=ground))
            image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
    except UnreadableImageError as error:
        raise ArgumentError(f"{name}: the file cannot be read as an image: {error}") from error
    return image


def covering(image: Image.Image, height: int, width: int) -> Image.Image:
    """A picture scaled so that it covers so many pixels, and cropped to them in the middle."""
    return ImageOps.fit(image, (width, height), Image.Resampling.LANCZOS)


def fitted(image: Image.Image, shape: Sequence[int]) -> torch.Tensor:
    """A picture in a training set's shape (C, H, W) and colours, in [-1, 1]: scaled, cropped."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        held = "points" if len(shape) == 1 else f"latents of {shape[0]} channels"
        raise ArgumentError(
            f"start: the training set holds {held}, to which an image cannot be fitted; start "
            "from noise"
        )
    channels, height, width = shape
    small = covering(with_channels(image, channels), height, width)
    values = np.asarray(small, np.float32) / 127.5 - 1
    return torch.from_numpy(values).reshape(height, width, channels).permute(2, 0, 1).contiguous()
