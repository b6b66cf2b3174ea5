"""Three plots of a clicked pixel: posterior weights, effective size, golden subset sizes."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from golddiff.attribution import PixelSources
from golddiff.estimators.registry import SHOWN
from golddiff.figures.curves import Panel, Series, draw_panels
from golddiff.figures.trajectory import level
from golddiff.studio.run import Curves, Run, Selection

NOISE = "noise σ (denoising runs to the right)"


def draw_plots(
    run: Run, step: int, selected: Selection, found: PixelSources | None, made: Curves
) -> Figure | None:
    """The plots that there is something to draw in, or None.

    Of the step shown, which those against sigma mark, and of the clicked pixel: its sources at that
    step, and its effective sizes at all.
    """
    sigma, budgets = run.sigmas[step], run.budgets()
    panels = []
    if found is not None:
        weights = np.sort(found.weights[found.weights > 0])[::-1].tolist()
        line = Series(SHOWN[selected.method].title, list(range(1, len(weights) + 1)), weights)
        title = f"weights of the pixel: effectively {found.effective:,.1f} images"
        axes = ("training images, heaviest first", f"weight at σ = {level(sigma)}")
        mark = max(found.effective, 1)
        panels.append(Panel(title, *axes, [line], "log", "log", mark=mark))
    if made.effective:
        lines = [
            Series(SHOWN[method].title, [s for s, _ in points], [number for _, number in points])
            for method, points in made.effective.items()
        ]
        slow = f" ({len(made.left_out)} slow left out)" if made.left_out else ""
        title = f"effective number of images{slow}"
        panels.append(Panel(title, NOISE, "images", lines, "log", "log", True, mark=sigma))
    if budgets is not None:
        m, k = zip(*budgets, strict=True)
        everything = [run.opened.store.count_of(run.settings.label)] * len(m)
        lines = [
            Series("all N", run.sigmas, everything, dashed=True),
            Series("$m_t$ screened", run.sigmas, m),
            Series("$k_t$ weighed", run.sigmas, k),
        ]
        title = f"golden subset, schedule “{run.settings.variant}”"
        panels.append(Panel(title, NOISE, "images", lines, "log", "log", True, mark=sigma))
    return draw_panels(panels) if panels else None
