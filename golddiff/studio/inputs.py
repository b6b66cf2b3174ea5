"""Images that people bring: uploaded, drawn, or picked from the training set."""

from __future__ import annotations

import base64
import binascii
import threading
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
MOST_DRAWING = 1_000_000  # characters; the sheet of random colours has a third of that
_URL = "data:image/png;base64,"
_one_at_a_time = threading.Lock()  # the largest takes half a gigabyte while it is decoded


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
        return _decoded("upload", Path(path).read_bytes(), MOST_PIXELS)
    except OSError as error:
        raise ArgumentError(f"upload: the file cannot be read: {error.strerror}") from error


def drawn(url: object) -> Image.Image:
    """A drawing from the page, black where there is no ink.

    Args:
        url: the sheet as a data URL of a PNG.

    Raises:
        ArgumentError: nothing was drawn, or something else than the page's sheet.
    """
    text = url if isinstance(url, str) else ""
    if not text.startswith(_URL) or len(text) > MOST_DRAWING:
        raise ArgumentError("drawing: got no drawing of this page")
    try:
        data = base64.b64decode(text[len(_URL) :], validate=True)
    except binascii.Error as error:
        raise ArgumentError("drawing: got no drawing of this page") from error
    image = _decoded("drawing", data, DRAWING_SIDE**2).convert("RGB")
    if image.getextrema() == ((0, 0),) * 3:
        raise ArgumentError("drawing: it is empty; draw something first")
    return image


def _decoded(name: str, data: bytes, most_pixels: int) -> Image.Image:
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
            values = decode(data)  # (C, H, W)
            values = values[0] if len(values) == 1 else values.transpose(1, 2, 0)
            image = Image.fromarray(np.ascontiguousarray(values))
            image.thumbnail((KEPT_SIDE, KEPT_SIDE), Image.Resampling.LANCZOS)
    except UnreadableImageError as error:
        raise ArgumentError(f"{name}: the file cannot be read as an image: {error}") from error
    return image


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
