"""Images that people bring: uploaded, drawn, or picked from the training set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from golddiff.errors import ArgumentError
from golddiff.sources.decode import UnreadableImageError, decode, read_header
from golddiff.sources.decode import with_channels as converted
from golddiff.store.images import ImageStore

MOST_BYTES = 40_000_000
MOST_PIXELS = 40_000_000
# What is kept of an upload: no store of images this studio can show quickly is larger.
KEPT_SIDE = 1024
DRAWING_SIDE = 256


def read_upload(path: str | Path) -> Image.Image:
    """An uploaded file as an image, refused from its size or header before it is decoded.

    Raises:
        ArgumentError: too many bytes or pixels, or no image.
    """
    try:
        size = Path(path).stat().st_size
        if size > MOST_BYTES:
            raise ArgumentError(
                f"upload: the file has {size / 1e6:,.0f} MB, expected at most "
                f"{MOST_BYTES / 1e6:.0f} MB"
            )
        data = Path(path).read_bytes()
        header = read_header(data)
        pixels = header.width * header.height
        if pixels > MOST_PIXELS:
            raise ArgumentError(
                f"upload: the image has {header.width:,} x {header.height:,} pixels "
                f"({pixels / 1e6:,.0f} megapixels), expected at most "
                f"{MOST_PIXELS / 1e6:.0f} megapixels; make it smaller first"
            )
        pixels_array = decode(data)
    except UnreadableImageError as error:
        raise ArgumentError(f"upload: the file cannot be read as an image: {error}") from error
    except OSError as error:
        raise ArgumentError(f"upload: the file cannot be read: {error.strerror}") from error
    if len(pixels_array) == 1:
        image = Image.fromarray(pixels_array[0])
    else:
        image = Image.fromarray(np.ascontiguousarray(pixels_array.transpose(1, 2, 0)))
    image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
    return image


def paper() -> Image.Image:
    """What is drawn on: black, as the background of the digits and their like."""
    return Image.new("RGB", (DRAWING_SIDE, DRAWING_SIDE), "black")


def drawn(image: Image.Image | None) -> Image.Image:
    """A drawing from the page.

    Raises:
        ArgumentError: nothing was drawn.
    """
    if image is None or image.convert("RGB").getextrema() == ((0, 0),) * 3:
        raise ArgumentError("drawing: it is empty; draw something first")
    canvas = Image.new("RGBA", image.size, "black")
    return Image.alpha_composite(canvas, image.convert("RGBA")).convert("RGB")


def fitted(image: Image.Image, store: ImageStore) -> torch.Tensor:
    """An image in a store's shape (C, H, W), in [-1, 1]: scaled, cropped, in its colours.

    Raises:
        ArgumentError: the store does not hold grey or RGB images.
    """
    channels, height, width = store.shape
    if channels not in (1, 3):
        raise ArgumentError(
            f"start: the store holds latents of {channels} channels, to which an image cannot be "
            "fitted; start from noise"
        )
    small = ImageOps.fit(converted(image, channels), (width, height), Image.Resampling.LANCZOS)
    values = np.asarray(small, np.float32) / 127.5 - 1
    return torch.from_numpy(values).reshape(height, width, channels).permute(2, 0, 1).contiguous()
