"""A figure that compares methods: one row per method, the same noise in each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from golddiff.system.pictures import draw_rows
from golddiff.system.units import duration

CELL = 0.78  # inches


@dataclass(frozen=True)
class Block:
    """The columns of one training set."""

    name: str  # short, for the row labels ("digits")
    title: str  # above the columns
    noise: torch.Tensor  # (n, C, H, W), the starting noise
    # By the method's title, in the order of the rows
    images: dict[str, torch.Tensor]  # (n, C, H, W) in [-1, 1]
    seconds: dict[str, float]  # per image and step


def draw_methods(blocks: Sequence[Block], caption: str = "") -> Figure:
    """One row per method, one block of columns per training set; the top row is the noise."""
    methods = list(blocks[0].images)
    widths = [len(block.noise) for block in blocks]
    labels = ["starting noise"]
    for method in methods:
        times = [f"{b.name} {duration(b.seconds[method])}".strip() for b in blocks]
        pairs = [" · ".join(times[i : i + 2]) for i in range(0, len(times), 2)]
        labels.append("\n".join([method, *pairs]))
    letters = max(len(line) for label in labels for line in label.splitlines())
    width = max(5.0, 0.4 + 0.073 * letters + CELL * sum(widths))
    tall = max(1.0, blocks[0].noise.shape[2] / blocks[0].noise.shape[3])
    figure = Figure(figsize=(width, 0.95 + CELL * tall * len(labels)), layout="constrained")
    grid = figure.subplots(1, len(blocks), squeeze=False, width_ratios=widths)[0]
    for axes, block in zip(grid, blocks, strict=True):
        images = torch.cat([block.noise / 2, *(block.images[m] for m in methods)])
        draw_rows(axes, images, labels if axes is grid[0] else [""] * len(labels))
        # In the middle of wider room, constrained layout would see too little of the labels.
        axes.set_anchor("W")
        axes.set_title(block.title, fontsize=11, parse_math=False)
    figure.supxlabel(caption, fontsize=8.5, color="0.35")
    return figure
