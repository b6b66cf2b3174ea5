"""The novelty dial as a picture: the same noise at several novelties, and one output's sources."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from golddiff.attribution import Attribution
from golddiff.figures.pictures import Pixels, cells, mosaic

SIDE, GAP, CELL = 84, 6, 0.8
SOURCES = 6


def draw_dial(
    rows: Sequence[tuple[float, torch.Tensor, float]],
    novelty: float,
    number: int,
    found: Attribution,
    caption: str,
) -> Figure:
    """A row a novelty, the same noise in every column; under them one output and its sources.

    Args:
        rows: (novelty asked for, images (n, C, H, W), novelty measured).
        novelty: whose output is explained.
        number: which of its outputs.
        found: that output's sources.
        caption: above all.
    """
    columns = len(rows[0][1])
    width, height = 1.5 + CELL * columns, 0.5 + CELL * (len(rows) + 1.55)
    figure = Figure(figsize=(width, height))
    figure.text(0.02, 1 - 0.25 / height, caption, fontsize=10, va="center")

    def put(pixels: Pixels, left: float, top: float, across: int, down: int) -> None:
        axes = figure.add_axes(
            (left / width, 1 - (top + CELL * down) / height, CELL * across / width,
             CELL * down / height)
        )  # fmt: skip
        axes.imshow(mosaic(pixels, across, GAP), interpolation="nearest", aspect="auto")
        axes.set_axis_off()

    def say(text: str, top: float) -> None:
        y = 1 - (top + CELL / 2) / height
        figure.text(1.42 / width, y, text, fontsize=9, ha="right", va="center")

    images = torch.cat([made for _, made, _ in rows])
    put(cells(images, SIDE), 1.5, 0.45, columns, len(rows))
    for i, (asked, _, measured) in enumerate(rows):
        say(f"--novelty {asked:g}\n(has {measured:.2f})", 0.45 + CELL * i)
    (output,) = [made[number] for asked, made, _ in rows if asked == novelty]
    sources, weights = found.top_images(min(SOURCES, columns - 2))
    top = 0.45 + CELL * (len(rows) + 0.25)
    say(f"one output of\n{novelty:g}, its sources", top)
    shown = torch.cat([output[None], found.store.images(sources)])
    pixels = cells(shown, SIDE)
    put(pixels[:1], 1.5, top, 1, 1)
    put(pixels[1:], 1.5 + 2 * CELL, top, len(sources), 1)
    figure.text((1.5 + 1.5 * CELL) / width, 1 - (top + CELL / 2) / height, "=",
                fontsize=14, ha="center", va="center")  # fmt: skip
    for i, weight in enumerate(weights):
        figure.text((1.5 + CELL * (2.5 + i)) / width, 1 - (top + CELL + 0.1) / height,
                    f"{weight:.0%}", fontsize=8, ha="center", va="top")  # fmt: skip
    figure.text((1.5 + CELL * (2.2 + len(sources))) / width, 1 - (top + CELL / 2) / height,
                "+ …", fontsize=11, va="center")  # fmt: skip
    return figure
