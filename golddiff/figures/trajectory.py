"""The denoising trajectory: what each step predicts, from how much noise and how many images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.figure import Figure

from golddiff.figures.pictures import cells, mosaic

ROWS = 8
COLUMNS = 12
SIDE = 96
GAP = 6
CELL = 0.95  # inches


@dataclass(frozen=True)
class Row:
    """One row of the picture: an image at each step.

    Attributes:
        label: written at its left; may be empty.
        images: (steps, C, H, W) in [-1, 1].
    """

    label: str
    images: torch.Tensor


def draw_trajectory(
    rows: Sequence[Row],
    sigmas: Sequence[float],
    subset_sizes: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """A row a sample, a column a step, noise and golden subset size over each column.

    More than 12 steps are thinned evenly, the first and the last always shown.

    Args:
        rows: at most 8 are drawn.
        sigmas: noise level of each step.
        subset_sizes: size of the golden subset at each step, as text; None: no such line.
        title: above it all.
    """
    shown = thinned(len(sigmas), COLUMNS)
    rows = rows[:ROWS]
    strip = np.concatenate([cells(row.images[shown], SIDE) for row in rows])
    picture = mosaic(strip, len(shown), GAP)
    labels = max(len(row.label) for row in rows)
    left, top, bottom = 0.25 + 0.075 * max(labels, 8), 0.55 + (0.35 if title else 0), 0.1
    width, height = CELL * len(shown), CELL * len(rows)
    figure = Figure(figsize=(left + width + 0.1, top + height + bottom))
    axes = figure.add_axes(
        (
            left / (left + width + 0.1),
            bottom / (top + height + bottom),
            width / (left + width + 0.1),
            height / (top + height + bottom),
        )
    )
    axes.imshow(picture, interpolation="nearest", aspect="auto")
    axes.set_axis_off()
    cell_x = picture.shape[1] / len(shown)
    cell_y = picture.shape[0] / len(rows)
    lines = [("noise σ", [_level(sigmas[i]) for i in shown])]
    if subset_sizes is not None:
        lines.append(("subset k", [subset_sizes[i] for i in shown]))
    for height_, (name, texts) in enumerate(reversed(lines)):
        y = -cell_y * (0.12 + 0.24 * height_)
        axes.text(-cell_x * 0.08, y, name, ha="right", va="bottom", fontsize=9, color="0.35")
        for column, text in enumerate(texts):
            axes.text((column + 0.5) * cell_x, y, text, ha="center", va="bottom", fontsize=9)
    for i, row in enumerate(rows):
        # Names come from people's files: what looks like a formula in one is none.
        y = (i + 0.5) * cell_y
        style = {"ha": "right", "va": "center", "fontsize": 9}
        axes.text(-cell_x * 0.08, y, row.label, parse_math=False, **style)  # type: ignore[arg-type]
    if title:
        y = 1 - 0.1 / (top + height + bottom)
        figure.text(0.02, y, title, va="top", fontsize=11, parse_math=False)
    return figure


def thinned(count: int, most: int) -> list[int]:
    """At most ``most`` of the indices 0..count-1, evenly spread, the first and last among them."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def _level(sigma: float) -> str:
    return f"{sigma:.1f}" if sigma >= 1 else f"{sigma:.2g}"
