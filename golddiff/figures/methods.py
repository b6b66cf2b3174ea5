"""The field in one picture: a row a method, the same noise in every column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from golddiff.figures.pictures import cells, mosaic
from golddiff.system.units import duration

SIDE = 96
GAP = 6
CELL = 0.78  # inches
LABEL = 2.3
BETWEEN = 0.3
TOP = 0.45
BOTTOM = 0.5


@dataclass(frozen=True)
class Made:
    """What one method made from the block's noise.

    Attributes:
        images: (n, C, H, W) in [-1, 1].
        seconds: measured time per image and step.
    """

    images: torch.Tensor
    seconds: float


@dataclass(frozen=True)
class Block:
    """One training set's columns.

    Attributes:
        name: short, for the row labels ("digits").
        title: above the columns.
        noise: (n, C, H, W), the starting noise.
        made: by the method's title, in the order of the rows.
    """

    name: str
    title: str
    noise: torch.Tensor
    made: dict[str, Made]


def draw_methods(blocks: Sequence[Block], caption: str = "") -> Figure:
    """A row a method, a block of columns a training set; the top row is the starting noise.

    Args:
        blocks: all with the same methods in the same order.
        caption: under the picture.
    """
    methods = list(blocks[0].made)
    rows = 1 + len(methods)
    widths = [CELL * len(block.noise) for block in blocks]
    width = LABEL + sum(widths) + BETWEEN * len(blocks)
    height = TOP + CELL * rows + BOTTOM
    figure = Figure(figsize=(width, height))
    left = LABEL
    for block, block_width in zip(blocks, widths, strict=True):
        images = torch.cat([block.noise / 2, *(block.made[m].images for m in methods)])
        axes = figure.add_axes(
            (left / width, BOTTOM / height, block_width / width, CELL * rows / height)
        )
        picture = mosaic(cells(images, SIDE), len(block.noise), GAP)
        axes.imshow(picture, interpolation="nearest", aspect="auto")
        axes.set_axis_off()
        axes.set_title(block.title, fontsize=11, pad=8)
        left += block_width + BETWEEN
    for row, method in enumerate(["starting noise", *methods]):
        y = (BOTTOM + CELL * (rows - row - 0.5)) / height
        x = (LABEL - 0.12) / width
        if row == 0:
            figure.text(x, y, method, ha="right", va="center", fontsize=11, color="0.35")
            continue
        figure.text(x, y + 0.02 / height, method, ha="right", va="bottom", fontsize=12)
        times = " · ".join(f"{b.name} {duration(b.made[method].seconds)}" for b in blocks)
        figure.text(x, y - 0.03 / height, times, ha="right", va="top", fontsize=8, color="0.35")
    figure.text(0.12 / width, 0.16 / height, caption, fontsize=8.5, color="0.35")
    return figure
