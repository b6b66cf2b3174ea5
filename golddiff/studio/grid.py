"""Draw all methods side by side in one picture, and map clicks on it to pixels."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from golddiff.estimators.registry import SHOWN
from golddiff.figures.trajectory import level
from golddiff.studio.run import Run, Selection
from golddiff.system.pictures import WHITE, cells, mosaic
from golddiff.system.units import duration

# About twice the usual size on the page, so that it is sharp on every screen
SIDE = 224
GAP = 16
HEADER = 84
TEXT, SMALL = 24, 21
INK, FAINT, MARK = (31, 41, 55), (107, 114, 128), (220, 38, 38)


def factor_of(run: Run) -> int:
    """Factor by which images are enlarged in the picture."""
    return math.ceil(SIDE / run.opened.store.shape[2])


def corner(run: Run, column: int, row: int) -> tuple[int, int]:
    """Left and top of a cell: one row per image, one column per method; column 0 is the start."""
    _, height, width = run.opened.store.shape
    factor = factor_of(run)
    return GAP + column * (width * factor + GAP), HEADER + row * (height * factor + GAP)


def selection_at(run: Run, x: int, y: int) -> Selection | None:
    """The pixel at a point of the picture; None outside the methods' images."""
    _, height, width = run.opened.store.shape
    factor = factor_of(run)
    column, right = divmod(x - GAP, width * factor + GAP)
    row, down = divmod(y - HEADER, height * factor + GAP)
    if not (0 < column <= len(run.settings.methods) and 0 <= row < run.settings.n):
        return None
    if right >= width * factor or down >= height * factor:
        return None
    return Selection(run.settings.methods[column - 1], row, down // factor, right // factor)


def draw_grid(run: Run, step: int, noisy: bool, selected: Selection | None) -> Image.Image:
    """All methods at one step (or their last finished step before it), beside the common start.

    ``noisy`` shows the noisy inputs instead of the predictions; a selected pixel is marked.
    """
    columns = [cells(run.start, SIDE)]
    heads = [("starting noise" if run.settings.start is None else "noisy image",
              f"σ = {level(run.sigmas[0])}")]  # fmt: skip
    for method in run.settings.methods:
        seconds = run.seconds[method][: step + 1]
        speed = duration(sum(seconds) / len(seconds)) + " a step" if seconds else "waiting"
        heads.append((SHOWN[method].title, speed))
        state = run.state(method, step)
        if state is None:
            columns.append(np.full_like(columns[0], WHITE))
            continue
        # Scale noisy states to about unit variance at every noise level, as VP diffusion does.
        shown = state.x / (1 + state.sigma**2) ** 0.5 if noisy else state.x0
        columns.append(cells(shown, SIDE))
    tiles = np.stack(columns, axis=1).reshape(-1, *columns[0].shape[1:])
    images = mosaic(tiles, len(columns), GAP)
    picture = Image.new("RGB", (images.shape[1], images.shape[0] + HEADER - GAP), "white")
    picture.paste(Image.fromarray(images), (0, HEADER - GAP))
    draw = ImageDraw.Draw(picture)
    for column, (title, subtitle) in enumerate(heads):
        left, _ = corner(run, column, 0)
        draw.text((left, 10), title, INK, font(TEXT))
        draw.text((left, 44), subtitle, FAINT, font(SMALL))
    if selected is not None and selected.method in run.settings.methods:
        left, top = corner(run, 1 + run.settings.methods.index(selected.method), selected.image)
        mark(draw, left, top, selected.x, selected.y, factor_of(run))
    return picture


def mark(draw: ImageDraw.ImageDraw, left: int, top: int, x: int, y: int, factor: int) -> None:
    """Frame a pixel of an enlarged image whose corner is at ``left``, ``top``."""
    # The frame is at least 18 pixels wide, so that it stays visible in large images.
    margin = 2 + max(0, (18 - factor) // 2)
    box = (
        left + x * factor - margin, top + y * factor - margin,
        left + (x + 1) * factor - 1 + margin, top + (y + 1) * factor - 1 + margin,
    )  # fmt: skip
    for width, colour in ((6, (WHITE,) * 3), (4, MARK)):
        draw.rectangle(box, outline=colour, width=width)


@cache
def font(size: int) -> ImageFont.FreeTypeFont:
    """Matplotlib's bundled DejaVu Sans, which has Greek letters and needs no download."""
    import matplotlib

    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    return ImageFont.truetype(str(path), size)
