"""A figure of the novelty dial: the same noise at several novelties, and one output's sources."""

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
    found: Attribution,
    caption: str,
) -> Figure:
    """Draw one row per novelty and one column per noise; below, one output and its sources.

    A row is (requested novelty, images (n, C, H, W), measured novelty). The output explained, of
    attribution ``found``, is the first of the row that requests ``novelty``.
    """
    columns = len(rows[0][1])
    size = (1.5 + CELL * columns, 0.9 + CELL * (len(rows) + 1))
    figure = Figure(figsize=size, layout="constrained")
    figure.suptitle(caption, fontsize=10)
    upper, lower = figure.subplots(2, 1, height_ratios=[len(rows), 1.2])
    labels = [f"--novelty {requested:g}\n(has {measured:.2f})" for requested, _, measured in rows]
    draw_rows(upper, torch.cat([images for _, images, _ in rows]), labels)
    (output,) = [images[0] for requested, images, _ in rows if requested == novelty]
    sources, weights = found.top_images(columns - 1)
    heads = ["output =", *(f"{weight:.0%}" for weight in weights)]
    shown = torch.cat([output[None], found.store.images(sources)])
    draw_rows(lower, shown, [f"one output of\n{novelty:g}, its sources"], heads)
    return figure
