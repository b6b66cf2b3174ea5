"""A figure of denoising trajectories: each step's prediction, noise level and subset size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from golddiff.figures.curves import wrapped
from golddiff.system.pictures import draw_rows

ROWS = 8
COLUMNS = 12
CELL = 0.95  # inches


@dataclass(frozen=True)
class Row:
    """One row of the picture: an image at each step."""

    label: str  # at the left; may be empty
    images: torch.Tensor  # (steps, C, H, W) in [-1, 1]


def draw_trajectory(
    rows: Sequence[Row],
    sigmas: Sequence[float],
    subset_sizes: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """One row per sample and one column per step, headed by its noise and golden subset size.

    Draws at most 8 rows and at most 12 evenly spaced steps, including the first and the last.
    """
    shown = thinned(len(sigmas), COLUMNS)
    rows = rows[:ROWS]
    heads = [level(sigmas[i]) for i in shown]
    xlabel = "noise σ"
    if subset_sizes is not None:
        heads = [f"{head}\n{subset_sizes[i]}" for head, i in zip(heads, shown, strict=True)]
        xlabel = "noise σ, and below it the size k of the golden subset"
    left = 0.25 + 0.075 * max(len(row.label) for row in rows)
    width = max(5.0, left + CELL * len(shown))
    title, title_height = wrapped(title, width)
    height = 0.7 + title_height + CELL * len(rows)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    images = torch.cat([row.images[shown] for row in rows])
    draw_rows(axes, images, [row.label for row in rows], heads)
    axes.set_xlabel(xlabel, fontsize=9, color="0.35")
    axes.xaxis.set_label_position("top")
    if title:
        figure.suptitle(title, fontsize=11, parse_math=False)
    return figure


def thinned(count: int, most: int) -> list[int]:
    """At most ``most`` evenly spaced indices from 0 to count - 1, including both ends."""
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]


def level(sigma: float) -> str:
    """A noise level as text, such as 60.8, 6.2 or 0.34."""
    return f"{sigma:.1f}" if sigma >= 1 else f"{sigma:.2g}"
