"""A figure of denoising trajectories: each step's prediction, noise level and subset size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from golddiff.figures.curves import wrapped
from golddiff.system.pictures import draw_rows

ROWS = 8
COLUMNS = 12
CELL = 0.95  # inches


def draw_trajectory(
    rows: Sequence[tuple[str, torch.Tensor]],
    sigmas: Sequence[float],
    subset_sizes: Sequence[str] | None = None,
    title: str = "",
) -> Figure:
    """One row per sample and one column per step, headed by its noise and golden subset size.

    A row is its label, which may be empty, and its images (steps, C, H, W) in [-1, 1].
    Draws at most 8 rows and at most 12 evenly spaced steps, including the first and the last.
    """
    shown = thinned(len(sigmas), COLUMNS)
    labels = [label for label, _ in rows[:ROWS]]
    heads = [level(sigmas[i]) for i in shown]
    xlabel = "noise σ"
    if subset_sizes is not None:
        heads = [f"{head}\n{subset_sizes[i]}" for head, i in zip(heads, shown, strict=True)]
        xlabel = "noise σ, and below it the size k of the golden subset"
    left = 0.25 + 0.075 * max(map(len, labels))
    width = max(5.0, left + CELL * len(shown))
    title, title_height = wrapped(title, width)
    tall = rows[0][1].shape[2] / rows[0][1].shape[3]
    height = 0.7 + title_height + CELL * tall * len(labels)
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.add_subplot()
    draw_rows(axes, torch.cat([images[shown] for _, images in rows[:ROWS]]), labels, heads)
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
