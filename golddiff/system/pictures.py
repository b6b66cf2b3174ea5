"""Image values to pixels, grids and picture files."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from golddiff.system.files import atomic_write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Pixels = NDArray[np.uint8]

WHITE = 255
DPI = 120
GRID_WIDTH, GRID_GAP = 512, 2
CELL_SIDE, CELL_GAP = 96, 6


def to_pixels(images: torch.Tensor) -> Pixels:
    """Convert images (n, C, H, W) to pixels (n, H, W) grey or (n, H, W, 3) colour.

    Values of 1 or 3 channels are clipped to [-1, 1]. With any other number of channels (latents)
    the channel mean is drawn, scaled from black at its minimum to white at its maximum.
    """
    channels = images.shape[1]
    values = images.detach().float().cpu()
    if channels not in (1, 3):
        values = values.mean(dim=1, keepdim=True)
        low, high = values.min(), values.max()
        values = (values - low) / max(float(high - low), 1e-12) * 2 - 1
    scaled = ((values.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).numpy()
    pixels: Pixels = scaled[:, 0] if scaled.shape[1] == 1 else scaled.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(pixels)


def enlarged(pixels: Pixels, factor: int) -> Pixels:
    """Repeat each pixel of (n, H, W) or (n, H, W, 3) into a square of side ``factor``."""
    return pixels.repeat(factor, axis=1).repeat(factor, axis=2)


def cells(images: torch.Tensor, side: int) -> Pixels:
    """Colour pixels of images (n, C, H, W), enlarged by an integer to at least ``side`` wide."""
    pixels = enlarged(to_pixels(images), max(1, math.ceil(side / images.shape[3])))
    return pixels if pixels.ndim == 4 else np.repeat(pixels[..., None], 3, axis=-1)


def mosaic(pixels: Pixels, columns: int, gap: int) -> Pixels:
    """One picture of images (n, H, W[, 3]) in reading order, with white gaps around each."""
    n, height, width = pixels.shape[:3]
    rows = math.ceil(n / columns)
    shape = (rows * (height + gap) + gap, columns * (width + gap) + gap, *pixels.shape[3:])
    out = np.full(shape, WHITE, np.uint8)
    for i, image in enumerate(pixels):
        top, left = gap + i // columns * (height + gap), gap + i % columns * (width + gap)
        out[top : top + height, left : left + width] = image
    return out


def draw_grid(images: torch.Tensor, columns: int | None = None) -> Image.Image:
    """A picture of images (n, C, H, W) in a roughly square grid at least 512 pixels wide."""
    pixels = to_pixels(images)
    columns = min(len(pixels), columns or math.ceil(math.sqrt(len(pixels))))
    width = GRID_WIDTH - GRID_GAP * (columns + 1)
    factor = max(1, math.ceil(width / (columns * pixels.shape[2])))
    return Image.fromarray(mosaic(enlarged(pixels, factor), columns, GRID_GAP))


def draw_rows(
    axes: Axes, images: torch.Tensor, labels: Sequence[str], heads: Sequence[str] = ()
) -> None:
    """Draw rows of images (rows * columns, C, H, W) with row labels and column heads."""
    columns = len(images) // len(labels)
    picture = mosaic(cells(images, CELL_SIDE), columns, CELL_GAP)
    axes.imshow(picture, interpolation="nearest")
    height, width = picture.shape[0] / len(labels), picture.shape[1] / columns
    middles = [(i + 0.5) * height for i in range(len(labels))]
    # Labels may be file names, in which "$" starts no formula.
    axes.set_yticks(middles, labels, fontsize=9, parse_math=False)
    axes.set_xticks([(i + 0.5) * width for i in range(len(heads))], heads, fontsize=9)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)


def png(images: torch.Tensor) -> bytes:
    """Images (n, C, H, W) as the bytes of one PNG, laid out by :func:`draw_grid`."""
    file = io.BytesIO()
    draw_grid(images).save(file, "PNG")
    return file.getvalue()


def data_uri(picture: Image.Image | Pixels) -> str:
    """A picture or pixel array as a PNG data URI."""
    image = picture if isinstance(picture, Image.Image) else Image.fromarray(picture)
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def rendered(figure: Figure) -> Image.Image:
    """A matplotlib figure as a picture."""
    file = io.BytesIO()
    figure.savefig(file, dpi=DPI)
    return Image.open(file)


def save(name: str, picture: Any, path: Path, texts: Mapping[str, str] | None = None) -> None:
    """Write a Pillow picture or a figure atomically, with text chunks in a Pillow picture's PNG."""
    with atomic_write(name, path) as temporary:
        if hasattr(picture, "savefig"):
            picture.savefig(temporary, dpi=DPI)
        else:
            info = PngInfo()  # other formats ignore it
            for keyword, text in (texts or {}).items():
                info.add_text(keyword, text)
            picture.save(temporary, pnginfo=info)


def own_texts(path: Path) -> dict[str, str]:
    """The texts of a PNG file that golddiff wrote; empty for any other file.

    A picture of one image has its number as "image", a grid has not.
    """
    try:
        with Image.open(path, formats=("PNG",)) as picture:
            texts: dict[str, str] = {str(name): str(text) for name, text in picture.info.items()}
    except Exception:  # the file may hold anything
        return {}
    return texts if texts.get("software", "").startswith("golddiff ") else {}
