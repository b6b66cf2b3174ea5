"""A single picture from the user, read within limits and fitted to a training set's shape."""

from __future__ import annotations

import io
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image, JpegImagePlugin

from golddiff.sources.decode import decode, fit, read_header, to_pixels, with_channels
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError
from golddiff.system.files import readable

MAX_BYTES = 40_000_000
MAX_PIXELS = 40_000_000
HALF_BLOCK = 4  # half the side of the blocks that JPEG encodes, in pixels
MAX_SIDE = 1024  # of the shorter side; larger pictures are reduced, as no training set has larger
_decode_lock = threading.Lock()  # decoding the largest picture takes half a gigabyte


def read_picture(name: str, path: str | Path) -> Image.Image:
    """Read an image file as an RGBA picture."""
    return decode_picture(name, picture_bytes(name, path))


def picture_bytes(name: str, path: str | Path) -> bytes:
    """The bytes of an image file, of at most 40 MB."""
    file = path_of(name, path)
    if not file.is_file():
        raise ArgumentError(f"{name}: {file} is not a file")
    with readable(f"{name}: the file cannot be read", ArgumentError):
        size = file.stat().st_size
        if size > MAX_BYTES:
            raise ArgumentError(
                f"{name}: the file has {size / 1e6:,.0f} MB, expected at most "
                f"{MAX_BYTES / 1e6:.0f} MB"
            )
        return file.read_bytes()


def decode_picture(name: str, data: bytes, most_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode an image file as an RGBA picture; above 40 megapixels it is refused undecoded."""
    with readable(f"{name}: the file cannot be read as an image", ArgumentError):
        header = read_header(data)
        pixels = header.width * header.height
        if pixels > most_pixels:
            raise ArgumentError(
                f"{name}: the image has {header.width:,} x {header.height:,} pixels "
                f"({pixels / 1e6:,.0f} megapixels), expected at most "
                f"{most_pixels / 1e6:.2g} megapixels; make it smaller first"
            )
        with _decode_lock:
            image = decode(data, channels=4)
            longer = round(MAX_SIDE * max(image.size) / min(image.size))
            image.thumbnail((longer, longer), Image.Resampling.LANCZOS)
        return image


def jpeg_error(data: bytes, height: int, width: int) -> float:
    """Estimate the error of a JPEG file's encoding, once scaled to cover height x width pixels.

    It is the change when the picture, shifted by half a block, is encoded again with the file's own
    settings. JPEG removes detail and leaves no roughness, so it cannot be seen in the pixels.
    ``data`` was decoded before by :func:`decode_picture`.

    Returns:
        The error's standard deviation, where white is 1 and black -1; 0 for other files.
    """
    with _decode_lock, Image.open(io.BytesIO(data)) as image:
        if not isinstance(image, JpegImagePlugin.JpegImageFile) or min(image.size) <= HALF_BLOCK:
            return 0.0
        shifted, encoded = image.crop((HALF_BLOCK, HALF_BLOCK, *image.size)), io.BytesIO()
        shifted.save(
            encoded, "JPEG", qtables=image.quantization,
            subsampling=JpegImagePlugin.get_sampling(image),
        )  # fmt: skip
        scale = min(1.0, max(height / image.height, width / image.width))
        size = round(scale * shifted.width) or 1, round(scale * shifted.height) or 1
        before, after = (
            np.asarray(picture.convert("RGB").resize(size, Image.Resampling.LANCZOS), np.float64)
            for picture in (shifted, Image.open(encoded))
        )
    return float(np.sqrt(np.square(after - before).mean()) / 127.5)


def fit_to_shape(image: Image.Image, shape: Sequence[int]) -> torch.Tensor:
    """Scale, crop and convert a picture to a training set's shape (C, H, W), values in [-1, 1]."""
    if len(shape) != 3 or shape[0] not in (1, 3):
        contents = "points" if len(shape) == 1 else f"latents of {shape[0]} channels"
        raise ArgumentError(
            f"start: the training set holds {contents}, to which an image cannot be fitted; start "
            "from noise"
        )
    channels, height, width = shape
    pixels = to_pixels(fit(with_channels(image, channels), width, height))
    return torch.from_numpy(pixels.astype(np.float32) / 127.5 - 1)
