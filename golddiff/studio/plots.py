"""Three plots of a clicked pixel: posterior weights, effective size, golden subset sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter
from PIL import Image

from golddiff.attribution import PixelSources
from golddiff.registry import SHOWN
from golddiff.studio.grid import level
from golddiff.studio.run import Curves, Run, Selection

COLOURS = ("#0f766e", "#b45309", "#7c3aed", "#be123c", "#1d4ed8", "#4d7c0f", "#525252", "#0891b2")
DPI = 150


def draw_plots(
    run: Run, step: int, selected: Selection | None, found: PixelSources | None, made: Curves
) -> Image.Image:
    """The plots as one picture.

    Args:
        run: the run.
        step: the one shown, from 0; marked in the plots against sigma.
        selected: the clicked pixel.
        found: its sources at that step; None: the first plot stays empty.
        made: its effective sizes at all steps.
    """
    figure = Figure(figsize=(11.6, 3.3))
    figure.subplots_adjust(left=0.055, right=0.99, top=0.9, bottom=0.15, wspace=0.22)
    weights, effective, budgets = figure.subplots(1, 3)
    _weights(weights, selected, found, run.sigmas[step])
    _effective(effective, run, made)
    _budgets(budgets, run)
    for axes in (effective, budgets):
        _against_sigma(axes, run, step)
    return _rendered(figure)


def _weights(
    axes: Axes, selected: Selection | None, found: PixelSources | None, sigma: float
) -> None:
    axes.set_title("posterior weights of the pixel", fontsize=10)
    if found is None or selected is None:
        _say(axes, "no weights: choose a pixel of a\nmethod that weighs training images")
        return
    ordered = np.sort(found.weights)[::-1]
    ordered = ordered[ordered > 0]
    ranks = np.arange(1, len(ordered) + 1)
    axes.loglog(
        ranks, ordered, color=_colour(selected.method), marker="." if len(ranks) < 60 else ""
    )
    axes.axvline(max(found.effective, 1), color="0.5", linestyle=":", linewidth=1)
    axes.text(
        0.04, 0.05, f"dotted: effectively {found.effective:,.1f} images", fontsize=8, color="0.35",
        transform=axes.transAxes,
    )  # fmt: skip
    axes.set_xlim(0.9, 1.1 * len(found.weights))
    axes.set_ylim(min(1e-5, max(1e-9, float(ordered[-1]) / 2)), 2)
    axes.set_xlabel("training images, heaviest first", fontsize=9)
    axes.set_ylabel(f"weight at σ = {level(sigma)}", fontsize=9)
    _quiet(axes)


def _effective(axes: Axes, run: Run, made: Curves) -> None:
    axes.set_title("effective number of images", fontsize=10)
    chosen = next(iter(made.effective), None)
    for method, points in made.effective.items():
        sigmas, numbers = zip(*points, strict=True)
        axes.loglog(sigmas, numbers, color=_colour(method), marker=".", markersize=4,
                    linewidth=2.4 if method == chosen else 1.1, label=SHOWN[method].title,
                    alpha=0.9)  # fmt: skip
    if not made.effective:
        _say(axes, "nothing yet: click a pixel")
        return
    axes.set_ylim(0.8, 1.5 * _count(run))
    axes.legend(fontsize=7, frameon=False, loc="best")
    if made.left_out:
        axes.set_title(
            f"effective number of images ({len(made.left_out)} slow left out)", fontsize=10
        )
    _quiet(axes)


def _budgets(axes: Axes, run: Run) -> None:
    axes.set_title(f"golden subset, schedule “{run.settings.variant}”", fontsize=10)
    sizes = run.budgets()
    if sizes is None:
        _say(axes, "no golden subset:\nno GoldDiff method is shown")
        return
    count = _count(run)
    m, k = zip(*sizes, strict=True)
    axes.axhline(count, color="0.6", linewidth=1, linestyle="--", label=f"all N = {count:,}")
    axes.loglog(run.sigmas, m, color=COLOURS[4], marker=".", markersize=4, label="$m_t$ screened")
    axes.loglog(run.sigmas, k, color=COLOURS[1], marker=".", markersize=4, label="$k_t$ weighed")
    axes.set_ylim(0.8, 1.5 * count)
    axes.legend(fontsize=7, frameon=False, loc="lower left")
    _quiet(axes)


def _against_sigma(axes: Axes, run: Run, step: int) -> None:
    axes.set_xlabel("noise σ (denoising runs to the right)", fontsize=9)
    axes.set_xscale("log")
    low, high = min(run.sigmas), max(run.sigmas)
    axes.set_xlim(high * 1.4, low / 1.4)
    axes.axvline(run.sigmas[step], color="#dc2626", linewidth=1, alpha=0.7)


def _count(run: Run) -> int:
    return len(run.opened.store.rows_of(run.settings.label))


def _colour(method: str) -> str:
    return COLOURS[list(SHOWN).index(method) % len(COLOURS)]


def _quiet(axes: Axes) -> None:
    axes.tick_params(labelsize=8)
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _say(axes: Axes, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes, color="0.4",
              fontsize=9)  # fmt: skip
    axes.set_yticks([])


def _rendered(figure: Figure) -> Image.Image:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)
    figure.set_dpi(DPI)
    canvas.draw()
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
