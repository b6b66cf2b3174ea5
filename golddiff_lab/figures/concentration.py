"""The paper's Figure 1: the posterior's support shrinks from the whole data to a neighbourhood.

The exact denoiser draws one sample from a set of plain points. At each noise level the upper
panel shows the weights of the exact posterior, the lower panel the golden subset that GoldDiff's
schedule picks for the same query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure

from golddiff.estimators.optimal import Optimal
from golddiff.figures.points import GREY, plane
from golddiff.kernels.rows import squared_distances
from golddiff.samplers import State, initial_noise, noise_levels, steps
from golddiff.store.images import ImageStore
from golddiff.supports.paper import PaperSchedule
from golddiff.system.numbers import F32, F64, I64

MASS = 0.99
STEPS = 100
LEVELS = (60.0, 1.5, 0.6, 0.3, 0.12, 0.02)
STAR = "#0099ff"  # the paper's colour
GOLD = "#c8860a"
CLOSE_UP = 0.05  # noise level below which the neighbourhood is too small to see
ZOOM = 0.1


@dataclass(frozen=True)
class Panel:
    """One noise level of one sample.

    Attributes:
        sigma: noise level.
        x: (D,) the noisy query in sigma coordinates, x0 + sigma * eps.
        x0: (D,) the exact posterior mean.
        weights: (N,) posterior weights of all training points, with sum 1.
        support: the smallest set of rows with 99% of the weight, heaviest first.
        golden: rows of the schedule's golden subset.
    """

    sigma: float
    x: F32
    x0: F32
    weights: F64
    support: I64
    golden: I64


def draw_concentration(
    store: ImageStore, seed: int = 0, levels: Sequence[float] = LEVELS
) -> Figure:
    """Posterior Progressive Concentration on plain points, from noise (left) to data (right).

    Of points (D,) the first two values are drawn.
    """
    panels = concentration(store, seed, levels)
    points = plane(store.images())
    start = _on_paper(panels[0])
    across, down = np.ptp(np.vstack([points, start]), axis=0)
    width = float(np.clip(2.2 * across / down, 1.8, 2.35)) * len(panels) + 0.7
    figure = Figure(figsize=(width, 5.0))
    grid = figure.subplots(2, len(panels), squeeze=False)
    figure.subplots_adjust(
        left=0.35 / width, right=1 - 0.75 / width, top=0.83, bottom=0.1, wspace=0.05, hspace=0.2
    )
    heaviest = ScalarMappable(Normalize(0, 1), "plasma_r")
    for (upper, lower), panel in zip(grid.T, panels, strict=True):
        rows = panel.support[::-1]  # draw the heaviest last, on top
        colours = heaviest.to_rgba(panel.weights[rows] / panel.weights.max())
        _cloud(upper, points, rows, colours, panel, start)
        upper.set_title(
            f"noise σ = {panel.sigma:.2g}\n99% of the weight: {len(rows):,}", fontsize=9.5
        )
        gold = np.tile(to_rgba(GOLD), (len(panel.golden), 1))
        _cloud(lower, points, panel.golden, gold, panel, start)
        lower.set_title(f"golden subset: {len(panel.golden):,}", fontsize=9.5)
    grid[0, 0].set_ylabel("exact posterior")
    grid[1, 0].set_ylabel("GoldDiff's schedule")
    bar = figure.colorbar(heaviest, cax=figure.add_axes((1 - 0.65 / width, 0.51, 0.008, 0.31)))
    bar.set_label("weight / largest", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    title = f"Posterior progressive concentration, {store.n:,} training points (grey)"
    figure.suptitle(title, x=0.35 / width, ha="left", fontsize=12)
    figure.legend(
        *grid[0, 0].get_legend_handles_labels(),
        loc="lower left", bbox_to_anchor=(0.2 / width, 0.0), ncols=4, frameon=False, fontsize=9,
    )  # fmt: skip
    return figure


def concentration(store: ImageStore, seed: int, levels: Sequence[float] = LEVELS) -> list[Panel]:
    """Exact posterior weights and the released schedule's golden subsets along one trajectory.

    The panels are the steps nearest to ``levels`` in log sigma; ``seed`` is that of the starting
    noise and of the schedule.
    """
    sigmas = noise_levels(STEPS, "ddim")
    run = list(steps(Optimal(store), initial_noise(1, store.shape, seed), sigmas))
    nearest = [int(np.abs(np.log(sigmas) - np.log(level)).argmin()) for level in levels]
    return [_panel(store, seed, run[i]) for i in dict.fromkeys(nearest)]


def _panel(store: ImageStore, seed: int, state: State) -> Panel:
    sigma = state.sigma
    x, x0 = state.x[0].numpy(), state.x0[0].numpy()
    distances = squared_distances(store.stored, store.rows_of(None), x[None])[0]
    weights = np.exp((distances.min() - distances) / (2 * sigma**2))
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    count = int(np.searchsorted(np.cumsum(weights[order]), MASS)) + 1
    (golden,) = PaperSchedule(variant="released").supports(store, x[None], sigma, None, seed)
    return Panel(sigma, x, x0, weights, order[:count], golden.rows)


def _on_paper(panel: Panel) -> F32:
    """The query in VP coordinates, x_t = sqrt(alpha) x, which fits into the plot."""
    state: F32 = panel.x / np.float32((1 + panel.sigma**2) ** 0.5)
    return plane(torch.from_numpy(state))


def _cloud(axes: Axes, points: F32, rows: I64, colours: F64, panel: Panel, start: F32) -> None:
    """One panel: all points, selected rows coloured, stars, and a close-up at low noise."""
    extent = np.concatenate([points, start[None]])
    low, high = extent.min(axis=0), extent.max(axis=0)
    margin = 0.08 * float((high - low).max())
    mean = plane(torch.from_numpy(panel.x0))
    frames = [(axes, low - margin, high + margin * np.array([1, 4]), 1.0)]
    if panel.sigma < CLOSE_UP:
        close = axes.inset_axes((0.55, 0.48, 0.48, 0.48))
        frames.append((close, mean - ZOOM, mean + ZOOM, 0.35))
    for frame, lower, upper, size in frames:
        frame.scatter(points[:, 0], points[:, 1], s=3, color=GREY, linewidths=0)
        frame.scatter(points[rows, 0], points[rows, 1], s=7, c=colours, linewidths=0)
        _mark(frame, _on_paper(panel), mean, start, size)
        frame.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), xticks=[], yticks=[])
        frame.set_aspect("equal")
        for spine in frame.spines.values():
            spine.set_color("0.8" if frame is axes else "0.3")


def _mark(axes: Axes, now: F32, mean: F32, start: F32, size: float) -> None:
    axes.scatter(
        start[0], start[1], s=120 * size, marker="*", label="starting noise",
        facecolors="none", edgecolors=STAR, linewidths=1.0, zorder=3,
    )  # fmt: skip
    axes.scatter(
        now[0], now[1], s=120 * size, marker="*", label="noisy point $x_t$",
        color=STAR, edgecolors="black", linewidths=0.7, zorder=4,
    )  # fmt: skip
    axes.scatter(
        mean[0], mean[1], s=36 * size, marker="X", label="posterior mean $E[x_0|x_t]$",
        color="white", edgecolors="black", linewidths=0.7, zorder=4,
    )  # fmt: skip
