"""A figure that compares methods: one row per method, the same noise in each column."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from matplotlib.figure import Figure

from golddiff.system.pictures import draw_rows
from golddiff.system.units import duration

CELL = 0.78  # inches
LABEL = 2.8  # inches; with less, labels are cut off, and the rows of two blocks differ in height


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
    size = (LABEL + CELL * sum(widths), 0.95 + CELL * (1 + len(methods)))
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(1, len(blocks), squeeze=False, width_ratios=widths)[0]
    labels = ["starting noise"]
    for method in methods:
        times = " · ".join(f"{b.name} {duration(b.seconds[method])}".strip() for b in blocks)
        labels.append(f"{method}\n{times}")
    for axes, block in zip(grid, blocks, strict=True):
        images = torch.cat([block.noise / 2, *(block.images[m] for m in methods)])
        draw_rows(axes, images, labels if axes is grid[0] else [""] * len(labels))
        axes.set_title(block.title, fontsize=11, parse_math=False)
    figure.supxlabel(caption, fontsize=8.5, color="0.35")
    return figure
