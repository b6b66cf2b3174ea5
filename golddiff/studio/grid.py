"""The picture of all methods side by side, and which pixel of it was clicked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from PIL import Image, ImageDraw, ImageFont

from golddiff.pictures import as_colour, enlarged, to_pixels
from golddiff.registry import SHOWN
from golddiff.studio.run import Run, Selection
from golddiff.system.units import duration

# Drawn at twice the size that it usually has on the page: sharp on every screen.
SIDE = 224
GAP = 16
HEADER = 84
TEXT, SMALL = 24, 21
INK, FAINT, MARK = (31, 41, 55), (107, 114, 128), (220, 38, 38)


@dataclass(frozen=True)
class Layout:
    """Where the cells of the picture lie: a column a method after the start, a row an image.

    Attributes:
        methods: of the columns, left to right; the column before them shows the start.
        n: rows.
        height, width: of one image in its own pixels.
        factor: side of one of its pixels in the picture.
    """

    methods: tuple[str, ...]
    n: int
    height: int
    width: int
    factor: int

    @classmethod
    def of(cls, run: Run) -> Layout:
        """The layout of a run's picture."""
        _, height, width = run.opened.store.shape
        factor = max(1, round(SIDE / width))
        return cls(run.settings.methods, run.settings.n, height, width, factor)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the whole picture."""
        right, _ = self.corner(len(self.methods) + 1, 0)
        _, bottom = self.corner(0, self.n)
        return right, bottom

    def corner(self, column: int, row: int) -> tuple[int, int]:
        """Left and top of a cell; column 0 is the start."""
        cell_width = max(SIDE, self.width * self.factor)
        left = GAP + column * (cell_width + GAP)
        return left, HEADER + row * (self.height * self.factor + GAP)

    def selection(self, x: int, y: int) -> Selection | None:
        """The pixel at a point of the picture; None between the methods' images."""
        for column, method in enumerate(self.methods, 1):
            for row in range(self.n):
                left, top = self.corner(column, row)
                inside_x, inside_y = (x - left) // self.factor, (y - top) // self.factor
                if 0 <= inside_x < self.width and 0 <= inside_y < self.height:
                    return Selection(method, row, inside_y, inside_x)
        return None


def draw_grid(run: Run, step: int, noisy: bool, selected: Selection | None) -> Image.Image:
    """All methods at one step, from the same start.

    Args:
        run: what to draw; methods that have not reached the step show their last one.
        step: from 0.
        noisy: show what each method saw instead of what it predicts.
        selected: a pixel to mark.
    """
    layout = Layout.of(run)
    picture = Image.new("RGB", layout.size, "white")
    draw = ImageDraw.Draw(picture)
    title = "starting noise" if run.settings.start is None else "noisy image"
    _column(draw, layout, 0, title, f"σ = {level(run.sigmas[0])}")
    _paste(picture, layout, 0, run.start)
    for column, method in enumerate(layout.methods, 1):
        seconds = run.seconds[method][: step + 1]
        each = duration(sum(seconds) / len(seconds)) + " a step" if seconds else "waiting"
        _column(draw, layout, column, SHOWN[method].title, each)
        frame = run.frame(method, step)
        if frame is None:
            continue
        # As the diffusion process holds it, of about unit size whatever the noise level.
        images = frame.x / (1 + frame.sigma**2) ** 0.5 if noisy else frame.x0
        _paste(picture, layout, column, images)
    if selected is not None and selected.method in layout.methods:
        _mark(draw, layout, selected)
    return picture


def level(sigma: float) -> str:
    """A noise level as people read it: 61, 6.2, 0.34."""
    return f"{sigma:.0f}" if sigma >= 10 else f"{sigma:.2g}"


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """The typeface that comes with matplotlib: it has the Greek letters, and needs no download."""
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)


def thumbnail(images: torch.Tensor, factor: int) -> list[Image.Image]:
    """Images (n, C, H, W), each enlarged by a whole factor."""
    return [Image.fromarray(p) for p in enlarged(as_colour(to_pixels(images)), factor)]


def _column(draw: ImageDraw.ImageDraw, layout: Layout, column: int, title: str, each: str) -> None:
    left, _ = layout.corner(column, 0)
    draw.text((left, 10), title, INK, font(TEXT))
    draw.text((left, 44), each, FAINT, font(SMALL))


def _paste(picture: Image.Image, layout: Layout, column: int, images: torch.Tensor) -> None:
    for row, cell in enumerate(thumbnail(images, layout.factor)):
        picture.paste(cell, layout.corner(column, row))


def _mark(draw: ImageDraw.ImageDraw, layout: Layout, selected: Selection) -> None:
    column = 1 + layout.methods.index(selected.method)
    left, top = layout.corner(column, selected.image)
    x, y = left + selected.x * layout.factor, top + selected.y * layout.factor
    size = layout.factor - 1
    # At least 18 pixels wide, or it would not be seen on an image of many pixels.
    room = max(0, (17 - size) // 2)
    for width, colour in ((6, (255, 255, 255)), (4, MARK)):
        draw.rectangle(
            (x - room - 2, y - room - 2, x + size + room + 2, y + size + room + 2),
            outline=colour, width=width,
        )  # fmt: skip
