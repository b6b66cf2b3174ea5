"""The novelty dial as a picture: the same noise at several novelties, and one output's sources."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from matplotlib.figure import Figure

from golddiff.attribution import Attribution
from golddiff.system.pictures import draw_rows

CELL = 0.8  # inches


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
    size = (1.5 + CELL * columns, 0.9 + CELL * (len(rows) + 1))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(caption, fontsize=10)
    upper, lower = figure.subplots(2, 1, height_ratios=[len(rows), 1.2])
    labels = [f"--novelty {asked:g}\n(has {measured:.2f})" for asked, _, measured in rows]
    draw_rows(upper, torch.cat([made for _, made, _ in rows]), labels)
    (output,) = [made[number] for asked, made, _ in rows if asked == novelty]
    sources, weights = found.top_images(columns - 1)
    heads = ["output =", *(f"{weight:.0%}" for weight in weights)]
    shown = torch.cat([output[None], found.store.images(sources)])
    draw_rows(lower, shown, [f"one output of\n{novelty:g}, its sources"], heads)
    return figure
