"""Line plots from plain data, which the commands save as JSON and ``golddiff plot`` redraws."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

COLUMNS = 3
PANEL = (4.1, 3.2)  # inches
ALONE = 5.6  # width of a single panel, inches
LEGEND, TITLE = 0.22, 0.18  # height per line of the legend and of the figure's title, inches
LETTERS = 44  # characters per line of a panel's title
TITLE_LETTERS = 10  # of the figure's title in an inch
# The palette of Okabe and Ito, distinguishable with any colour vision, and three more.
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D3B",
    "#882255", "#999999",
)  # fmt: skip
MARKERS = "osD^vPX"  # no divisor in common with the colours, so that 70 lines differ


@dataclass(frozen=True)
class Series:
    """One line of a plot."""

    name: str  # in the legend; a name has the same colour in every panel
    x: Sequence[float]
    y: Sequence[float | None]  # None is a gap
    # low, high: limits of a band around y, or None
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    dashed: bool = False  # dashed and without markers, for reference lines
    like: str = ""  # name of the series whose colour to share; empty for a colour of its own


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    xscale: str = "linear"  # or "log"
    yscale: str = "linear"
    falling: bool = False  # x decreases to the right, like the noise level during sampling
    floor: float | None = None  # lowest y shown, for scores unbounded below; None: no limit
    mark: float | None = None  # x of a vertical line


def draw_panels(panels: Sequence[Panel], title: str = "") -> Figure:
    """Draw panels in rows of three (four panels: two rows of two) with one legend."""
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    lines = [line for panel in panels for line in panel.series]
    names = list(dict.fromkeys(line.name for line in lines))
    # A series that shares a colour uses up none.
    coloured = dict.fromkeys(line.like or line.name for line in lines)
    colours = {name: index for index, name in enumerate(coloured)}
    width = PANEL[0] * columns if columns > 1 else ALONE
    per_row = max(1, int(width / (0.7 + 0.075 * max(map(len, names), default=0))))
    legend = 0.1 + LEGEND * math.ceil(len(names) / per_row) if len(names) > 1 else 0.05
    title, title_height = wrapped(title, width)
    height = PANEL[1] * rows + legend + title_height
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    entries: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, colours)
        handles, labels = axes.get_legend_handles_labels()
        entries.update(zip(labels, handles, strict=True))
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    if len(names) > 1:
        figure.legend(
            entries.values(), entries.keys(), loc="outside lower center",
            ncols=min(per_row, len(names)), frameon=False, fontsize=9,
        )  # fmt: skip
    if title:
        figure.suptitle(title, fontsize=12, parse_math=False)
    return figure


def wrapped(title: str, width: float) -> tuple[str, float]:
    """A figure's title in lines that fit a width, and the height that they take, in inches."""
    lines = textwrap.wrap(title, int(TITLE_LETTERS * width))
    return "\n".join(lines), TITLE * (len(lines) + 1) if lines else 0.0


def _draw(axes: Axes, panel: Panel, colours: dict[str, int]) -> None:
    for line in panel.series:
        index = colours[line.like or line.name]
        colour = COLOURS[index % len(COLOURS)]
        marker = "" if line.dashed or len(line.x) > 40 else MARKERS[index % len(MARKERS)]
        y = np.array(line.y, float)  # None becomes NaN, a gap
        axes.plot(
            line.x, y, color=colour, marker=marker, markersize=4, linewidth=1.4,
            linestyle="--" if line.dashed else "-", label=line.name,
        )  # fmt: skip
        if line.low is not None and line.high is not None:
            low, high = np.array(line.low, float), np.array(line.high, float)
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale(panel.xscale)
    axes.set_yscale(panel.yscale)
    if panel.falling:
        axes.invert_xaxis()
    ylabel = panel.ylabel
    if panel.floor is not None:
        values = [v for line in panel.series for v in line.y if v is not None]
        if values and min(values) < panel.floor < max(values):
            height = max(max(values) - panel.floor, 1.0)  # a margin of what is shown alone
            axes.set_ylim(panel.floor, panel.floor + 1.05 * height)
            ylabel = f"{panel.ylabel} (cut at {panel.floor:g})"
    if panel.mark is not None:
        axes.axvline(panel.mark, color="0.4", linestyle=":", linewidth=1.2)
    axes.set_title(textwrap.fill(panel.title, LETTERS), fontsize=10)
    axes.set_xlabel(panel.xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.tick_params(labelsize=8, which="both")
    if panel.xscale == "log":
        ticks = _spaced(sorted({value for line in panel.series for value in line.x}))
        axes.set_xticks(
            ticks, [f"{tick:,.3g}" if tick < 1000 else f"{tick:,.0f}" for tick in ticks]
        )
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _spaced(ticks: list[float]) -> list[float]:
    """Drop ascending ticks whose labels would overlap on a log axis."""
    ratio = (ticks[-1] / ticks[0]) ** 0.12
    kept = ticks[:1]
    for tick in ticks[1:]:
        if tick > kept[-1] * ratio:
            kept.append(tick)
    return kept
