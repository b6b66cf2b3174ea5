"""Scatter plots of training points and samples (D,)."""

from __future__ import annotations

import torch
from matplotlib.figure import Figure
from torch.nn.functional import pad

from golddiff.system.numbers import F32

SHOWN = 20_000
GREY, BLUE = "#b8b8b8", "#0077cc"


def draw_points(
    training: torch.Tensor, samples: torch.Tensor, paths: torch.Tensor | None = None
) -> Figure:
    """Plot the first two values of training points (N, D), grey, and samples (n, D), blue.

    At most 20,000 training points are drawn. ``paths`` (steps, n, D) adds a line to each sample.
    """
    figure = Figure(figsize=(6, 6), layout="constrained")
    axes = figure.add_subplot()
    points = plane(training[:: -(-len(training) // SHOWN)])
    label = f"{len(training):,} training points"
    axes.scatter(points[:, 0], points[:, 1], s=6, color=GREY, linewidths=0, label=label)
    if paths is not None:
        for path in plane(paths).transpose(1, 0, 2):
            axes.plot(*path.T, color=BLUE, linewidth=0.6, alpha=0.5)
    label = f"{len(samples):,} samples" + ("" if paths is None else ", with each step's x0")
    points = plane(samples)
    axes.scatter(points[:, 0], points[:, 1], s=14, color=BLUE, linewidths=0, label=label, zorder=3)
    axes.set_aspect("equal", adjustable="datalim")
    axes.tick_params(labelsize=8, color="0.6", labelcolor="0.4")
    axes.spines[:].set_color("0.8")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.09), ncols=2, frameon=False)
    if training.shape[-1] > 2:
        axes.set_xlabel(f"value 1 of {training.shape[-1]}")
        axes.set_ylabel(f"value 2 of {training.shape[-1]}")
    return figure


def plane(points: torch.Tensor) -> F32:
    """The first two values of points (..., D) as (..., 2); for D = 1 the second is 0."""
    values: F32 = pad(points, (0, 2 - points.shape[-1])).numpy(force=True)  # crops if D > 2
    return values
