"""The loss curve of a training run."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

GREY, BLUE = "#b8b8b8", "#0077cc"


def draw_losses(points: Sequence[tuple[int, float]], title: str = "") -> Figure:
    """Loss against steps, on logarithmic axes, with the mean of the last tenth.

    Args:
        points: (step, mean loss of the steps up to it), ascending; may be empty.
        title: above the picture.
    """
    figure = Figure(figsize=(5, 3), layout="constrained")
    axes = figure.add_subplot()
    if points:
        steps, losses = zip(*points, strict=True)
        axes.plot(steps, losses, color=GREY, linewidth=0.8)
        # The last tenth of what there is, so that the steep start is not smeared over the rest.
        parts = [losses[i - i // 10 : i + 1] for i in range(len(losses))]
        means = [sum(part) / len(part) for part in parts]
        axes.plot(steps, means, color=BLUE, linewidth=1.5)
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.set_xlabel("step")
    axes.set_ylabel("mean squared error of eps")
    axes.set_title(title, fontsize="medium")
    return figure
