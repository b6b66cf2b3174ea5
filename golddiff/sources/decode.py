"""Decoding of encoded images, and conversion of Pillow images to (C, H, W) uint8 pixels."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from golddiff.system.errors import one_line

# The limit at which Pillow raises; it applies even if a program has lifted Pillow's own.
MAX_PIXELS = 178_956_970

# Guards against decompression bombs. Photographs have 2 to 20 pixels per encoded byte; images of up
# to UNCHECKED_PIXELS may have any number.
MAX_PIXELS_PER_BYTE = 256
UNCHECKED_PIXELS = 1 << 26  # a page at 600 dots an inch, of which white paper takes no bytes

# An encoded image larger than this is refused before it is read into memory.
MAX_ENCODED_BYTES = 1 << 29

# Only formats that Pillow decodes itself; its EPS reader, for example, starts another program.
_FORMATS = [
    *("PNG", "JPEG", "MPO", "JPEG2000", "WEBP", "AVIF", "GIF"),
    *("BMP", "DIB", "TIFF", "PPM", "TGA", "PCX", "SGI"),
]

_SIXTEEN_BITS = ("PNG", "PPM")  # Pillow opens 16-bit images of these formats as 32-bit I

EXTENSIONS = frozenset({".png", ".jpg", ".jpeg", ".jpe", ".jfif", ".webp", ".gif", ".bmp", ".dib"})
EXTENSIONS |= {".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".avif", ".jp2", ".j2k"}
EXTENSIONS |= {".pcx", ".sgi"}

_ORIENTATION, _PHOTOMETRIC = 0x0112, 0x0106  # tags of EXIF and TIFF
_TILE_SIDES = 0x0142, 0x0143
Box = tuple[float, float, float, float]  # left, top, right, bottom


class UnreadableImageError(Exception):
    """An image cannot be decoded; the message gives the reason, without the image's name."""


class Header(NamedTuple):
    """The properties of an image that its header gives."""

    width: int  # in pixels, after the EXIF rotation
    height: int  # in pixels, after the EXIF rotation
    grey: bool  # whether the image is stored without colour


def read_header(data: bytes | Image.Image) -> Header:
    """Read the header of an encoded or Pillow image without decoding its pixels."""
    with _opened(data) as image:
        return Header(*_upright_size(image), _is_grey(image))


def decode(
    data: bytes | Image.Image, *, channels: int | None = None, size: int | None = None
) -> Image.Image:
    """Decode an image.

    Applies the EXIF rotation, composites on white, and takes an animation's first frame.

    Args:
        data: the bytes of an image file, or a Pillow image.
        channels: 1, 3, or 4 to keep transparency; None keeps grey images grey (1) and makes all
            others RGB (3).
        size: scale and centre-crop to a square of this side; None keeps the image's own size.

    Raises:
        UnreadableImageError: ``data`` is not an image, is truncated, or is too large.
    """
    with _opened(data) as image:
        whole, orientation, scale = _upright_size(image), _orientation(image), 1.0
        if size is not None and isinstance(data, bytes):
            # A JPEG can be decoded at 1/2, 1/4 or 1/8 of its size; twice the target keeps enough
            # detail for the resize filter. Other formats ignore this.
            full = image.width
            drafted = image.draft(None, (2 * size, 2 * size))
            scale = drafted[1][2] / full if drafted else 1.0
        image.load()
        white_is_zero = getattr(image, "tag_v2", {}).get(_PHOTOMETRIC) == 0
        inverted = white_is_zero and image.mode.startswith("I")
        upright = image if orientation == 1 else ImageOps.exif_transpose(image)
        if inverted:  # Pillow inverts only pixels of up to 8 bits
            upright = ImageOps.invert(_to_8_bits(upright))
        if channels is None:
            channels = 1 if _is_grey(upright) else 3
        converted = with_channels(upright, channels)
        if size is None:
            return converted
        box = tuple(edge * scale for edge in middle(*whole, size, size))
        # A reduced JPEG has its sides rounded up. Some rotations put the surplus at left or top.
        x, y = (have - scale * had for have, had in zip(converted.size, whole, strict=True))
        x, y = x * (orientation in (2, 3, 6, 7)), y * (orientation in (3, 4, 7, 8))
        return _resized(converted, size, size, (box[0] + x, box[1] + y, box[2] + x, box[3] + y))


def read_file(path: str | Path) -> bytes:
    """The bytes of an image file; OSError if it is larger than :data:`MAX_ENCODED_BYTES`."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise OSError("it is not a file")
    if status.st_size > MAX_ENCODED_BYTES:
        raise OSError(f"it has {status.st_size:,} bytes")
    return Path(path).read_bytes()


def with_channels(image: Image.Image, channels: int, background: str = "white") -> Image.Image:
    """Convert any Pillow image to grey (``channels=1``), RGB (3) or RGBA (4).

    ``background`` is the colour that shows where a grey or RGB image was transparent.
    """
    if image.mode.startswith("I"):
        image = _to_8_bits(image)
    if image.mode in ("LA", "La", "PA", "RGBA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        if channels != 4:
            image = Image.alpha_composite(Image.new("RGBA", image.size, background), image)
    elif image.mode not in ("1", "L", "RGB"):
        image = image.convert("RGB")
    mode = {1: "L", 3: "RGB", 4: "RGBA"}[channels]
    return image if image.mode == mode else image.convert(mode)


def fit(image: Image.Image, width: int, height: int) -> Image.Image:
    """Crop the middle of an image to the proportions of width x height, and scale it to them."""
    return _resized(image, width, height, middle(*image.size, width, height))


def middle(width: int, height: int, across: int, down: int) -> Box:
    """The largest middle part, of proportions across : down, of an image of width x height.

    It begins at a whole pixel, so that an image that needs no scaling is only cropped.
    """
    wide, high = min(width, height * across / down), min(height, width * down / across)
    left, top = (width - wide) // 2, (height - high) // 2
    return left, top, left + wide, top + high


def _resized(image: Image.Image, width: int, height: int, box: Box) -> Image.Image:
    """A part of an image, scaled with antialiasing."""
    wide, high = box[2] - box[0], box[3] - box[1]
    if image.size == (width, height) and wide == width and high == height:
        return image
    method = Image.Resampling.LANCZOS if wide > width else Image.Resampling.BICUBIC
    return image.resize((width, height), method, box=box, reducing_gap=3.0)


def to_pixels(image: Image.Image) -> NDArray[np.uint8]:
    """(C, H, W) uint8 pixels of a Pillow image of mode L or RGB."""
    array = np.asarray(image, dtype=np.uint8)
    if array.ndim == 2:
        return array[None]
    return np.ascontiguousarray(array.transpose(2, 0, 1))


def to_image(pixels: NDArray[np.uint8]) -> Image.Image:
    """A Pillow image of (C, H, W) uint8 pixels with 1, 3 or 4 channels."""
    squeezed = pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)
    return Image.fromarray(np.ascontiguousarray(squeezed))


@contextlib.contextmanager
def _opened(data: bytes | Image.Image) -> Iterator[Image.Image]:
    if data == b"":
        raise UnreadableImageError("it is empty")
    try:
        if isinstance(data, Image.Image):
            _check_range(data)
            yield data
            return
        with Image.open(io.BytesIO(data), formats=_formats()) as image:
            # Pillow decodes whole tiles of a TIFF, however much larger than the image they are.
            tags = getattr(image, "tag_v2", {})
            width, height = map(max, image.size, (tags.get(tag, 0) for tag in _TILE_SIDES))
            if width * height > MAX_PIXELS:
                raise UnreadableImageError(
                    f"it has {width} x {height} pixels, more than the {MAX_PIXELS:,} allowed"
                )
            if width * height > max(UNCHECKED_PIXELS, MAX_PIXELS_PER_BYTE * len(data)):
                raise UnreadableImageError(
                    f"it claims {width} x {height} pixels in {len(data):,} bytes, more than "
                    f"{MAX_PIXELS_PER_BYTE} pixels a byte, so it could be an attack on memory; "
                    "if it is yours, save it smaller"
                )
            _check_range(image)
            yield image
    except UnreadableImageError:
        raise
    except UnidentifiedImageError as error:
        raise UnreadableImageError("it is not an image of a known format") from error
    except Exception as error:
        # Pillow's decoders raise many types of error on damaged data: OSError, SyntaxError,
        # ValueError, struct.error, IndexError, zlib.error...
        raise UnreadableImageError(one_line(error)) from error


def _check_range(image: Image.Image) -> None:
    if image.mode == "F" or (image.mode == "I" and image.format not in _SIXTEEN_BITS):
        kind = "floating-point" if image.mode == "F" else "32-bit or signed"
        raise UnreadableImageError(
            f"its pixels are {kind} numbers, whose range is unknown; save it with 8 or 16 bits "
            "and no sign"
        )


@functools.cache
def _formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in _FORMATS if name in Image.OPEN)


def _orientation(image: Image.Image) -> int:
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        return 1  # the image is readable even if its EXIF block is damaged
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _upright_size(image: Image.Image) -> tuple[int, int]:
    """Width and height after the EXIF rotation; Pillow's reader of TIFF gives these itself."""
    width, height = image.size
    is_turned = _orientation(image) >= 5 and image.format != "TIFF"
    return (height, width) if is_turned else (width, height)


def _is_grey(image: Image.Image) -> bool:
    if image.mode != "P":
        return image.mode in ("1", "L", "LA", "La", "F") or image.mode.startswith("I")
    palette = image.getpalette("RGB") or []
    red, green, blue = palette[0::3], palette[1::3], palette[2::3]
    return red == green == blue


def _to_8_bits(image: Image.Image) -> Image.Image:
    """Round a 16-bit image (modes I;16* and I) to 8 bits; a transparent value becomes alpha."""
    values = np.asarray(image).astype(np.int64)
    grey = Image.fromarray(((values.clip(0, 65535) + 128) // 257).astype(np.uint8))
    transparent = image.info.get("transparency")
    if not isinstance(transparent, int):
        return grey
    alpha = Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8))
    return Image.merge("LA", (grey, alpha))
