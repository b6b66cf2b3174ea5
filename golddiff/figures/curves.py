"""Line plots from plain figures: what the commands keep as JSON can be drawn again."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

Scale = Literal["linear", "log"]

COLUMNS = 3
PANEL = (4.1, 3.2)  # inches
ALONE = 5.6  # width of a single panel
LEGEND, TITLE = 0.22, 0.35  # of each line
LETTERS = 44  # of a title's line: about as wide as a panel
FEW = 8  # different x that each have their own tick
# Okabe & Ito's, told apart with any colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A6D3B")
MARKERS = "osD^vPX*"


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str  # in the legend; the same name has the same colour in every panel
    x: Sequence[float]
    y: Sequence[float | None]  # None is a gap
    # low, high: a band around y, or None
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    dashed: bool = False  # a line to compare with, without markers
    like: str = ""  # the name of the series whose colour it has too; empty for its own


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str
    xlabel: str
    ylabel: str
    series: Sequence[Series]
    xscale: Scale = "linear"
    yscale: Scale = "linear"
    falling: bool = False  # x from large to small, as noise falls
    floor: float | None = None  # lowest y shown, for scores that fall without bound; None: all
    mark: float | None = None  # an x with a line through it

    def figures(self) -> dict[str, Any]:
        """The same for JSON."""
        return asdict(self)


def draw_panels(panels: Sequence[Panel], title: str = "") -> Figure:
    """Panels in rows of three, one legend for all."""
    columns = 2 if len(panels) == 4 else min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    lines = [line for panel in panels for line in panel.series]
    names = list(dict.fromkeys(line.name for line in lines))
    # A series of another's colour takes none away.
    own = dict.fromkeys(line.like or line.name for line in lines)
    places = {name: place for place, name in enumerate(own)}
    width = PANEL[0] * columns if columns > 1 else ALONE
    a_row = max(1, int(width / (0.7 + 0.075 * max(map(len, names), default=0))))
    below = 0.1 + LEGEND * math.ceil(len(names) / a_row) if len(names) > 1 else 0.05
    height = PANEL[1] * rows + below + (TITLE if title else 0)
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    known: dict[str, Any] = {}
    for axes, panel in zip(grid, panels, strict=False):
        _draw(axes, panel, places)
        handles, labels = axes.get_legend_handles_labels()
        known.update(zip(labels, handles, strict=True))
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    if len(names) > 1:
        figure.legend(
            known.values(), known.keys(), loc="outside lower center",
            ncols=min(a_row, len(names)), frameon=False, fontsize=9,
        )  # fmt: skip
    if title:
        figure.suptitle(title, fontsize=12)
    return figure


def _draw(axes: Axes, panel: Panel, places: dict[str, int]) -> None:
    for line in panel.series:
        place = places[line.like or line.name]
        colour = COLOURS[place % len(COLOURS)]
        marker = "" if line.dashed or len(line.x) > 40 else MARKERS[place % len(MARKERS)]
        axes.plot(
            line.x, _numbers(line.y), color=colour, marker=marker, markersize=4, linewidth=1.4,
            linestyle="--" if line.dashed else "-", label=line.name,
        )  # fmt: skip
        if line.low is not None and line.high is not None:
            low, high = _numbers(line.low), _numbers(line.high)
            axes.fill_between(line.x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_xscale(panel.xscale)
    axes.set_yscale(panel.yscale)
    if panel.falling:
        axes.invert_xaxis()
    if panel.floor is not None:
        values = [v for line in panel.series for v in line.y if v is not None]
        if values and min(values) < panel.floor:
            axes.set_ylim(bottom=panel.floor)
    if panel.mark is not None:
        axes.axvline(panel.mark, color="0.4", linestyle=":", linewidth=1.2)
    axes.set_title(textwrap.fill(panel.title, LETTERS), fontsize=10)
    axes.set_xlabel(panel.xlabel, fontsize=9)
    axes.set_ylabel(panel.ylabel, fontsize=9)
    axes.tick_params(labelsize=8, which="both")
    sizes = sorted({value for line in panel.series for value in line.x})
    if panel.xscale == "log" and len(sizes) <= FEW:
        sizes = _apart(sizes)
        axes.set_xticks(
            sizes, [f"{size:,.3g}" if size < 1000 else f"{size:,.0f}" for size in sizes]
        )
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _apart(sizes: list[float]) -> list[float]:
    """Those of ascending sizes whose labels do not touch on a log axis."""
    least = (sizes[-1] / sizes[0]) ** 0.12
    kept = sizes[:1]
    for size in sizes[1:]:
        if size > kept[-1] * least:
            kept.append(size)
    return kept


def _numbers(values: Sequence[float | None]) -> list[float]:
    return [math.nan if value is None else float(value) for value in values]
