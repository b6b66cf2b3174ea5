"""How many images each step weighed, as a small drawing in the page itself."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from golddiff.recording import Subsets

WIDTH, HEIGHT = 700, 270
LEFT, RIGHT, TOP, BOTTOM = 64, 172, 12, 44


def subsets_plot(subsets: Subsets) -> str:
    """An SVG element: candidates, golden subset and effective number over the denoiser calls.

    Lines are medians over the images, bands run from the least to the most; counts in log scale.
    """
    series = [
        ("candidates m", "--b", subsets.screened.astype(float)),
        ("weighed k", "--a", subsets.kept.astype(float)),
        ("effective number", "--c", subsets.effective),
    ]
    if np.array_equal(subsets.screened, subsets.kept):
        series.pop(0)
    decades = max(1, math.ceil(math.log10(max(float(values.max()) for _, _, values in series))))

    def y_of(count: float) -> float:
        share = math.log10(max(count, 1.0)) / decades
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)

    calls = len(subsets.sigmas)
    xs = [LEFT + (WIDTH - LEFT - RIGHT) * (i + 0.5) / calls for i in range(calls)]
    parts = [_grid(decades, y_of), _levels(subsets.sigmas, xs)]
    ends = _apart([y_of(float(np.median(values[-1]))) for _, _, values in series])
    for (name, colour, values), end in zip(series, ends, strict=True):
        parts.append(_line(xs, values, y_of, colour))
        last = float(np.median(values[-1]))
        parts.append(
            f'<text x="{WIDTH - RIGHT + 10}" y="{end + 4:.1f}" style="fill: var({colour})">'
            f"{name}: {_count(last)}</text>"
        )
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="images weighed at each step">{"".join(parts)}</svg>'
    )


def _grid(decades: int, y_of: object) -> str:
    assert callable(y_of)
    lines = []
    for power in range(decades + 1):
        y = y_of(10.0**power)
        lines.append(
            f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{10**power:,}</text>'
        )
    return "".join(lines)


def _levels(sigmas: Sequence[float], xs: Sequence[float]) -> str:
    every = math.ceil(len(sigmas) / 10)
    labels = [
        f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{sigma:.2g}</text>'
        for sigma, x in list(zip(sigmas, xs, strict=True))[::every]
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return "".join(labels) + (
        f'<text x="{middle}" y="{HEIGHT - 6}" text-anchor="middle">'
        f"noise level σ of each step</text>"
    )


def _line(xs: Sequence[float], values: NDArray[np.float64], y_of: object, colour: str) -> str:
    assert callable(y_of)
    low, high = values.min(axis=1), values.max(axis=1)
    there = [f"{x:.1f},{y_of(float(v)):.1f}" for x, v in zip(xs, high, strict=True)]
    back = [f"{x:.1f},{y_of(float(v)):.1f}" for x, v in zip(xs, low, strict=True)]
    middle = np.median(values, axis=1)
    points = [f"{x:.1f},{y_of(float(v)):.1f}" for x, v in zip(xs, middle, strict=True)]
    dots = "".join(
        f'<circle cx="{p.split(",")[0]}" cy="{p.split(",")[1]}" r="3" style="fill: var({colour})"/>'
        for p in points
    )
    return (
        f'<polygon class="band" points="{" ".join(there + back[::-1])}" '
        f'style="fill: var({colour})"/>'
        f'<path d="M{" L".join(points)}" style="stroke: var({colour})"/>{dots}'
    )


def _apart(heights: list[float], gap: float = 16.0) -> list[float]:
    """Heights of labels moved down where they would overlap the one above."""
    placed, above = list(heights), -math.inf
    for i in sorted(range(len(heights)), key=heights.__getitem__):
        placed[i] = above = max(heights[i], above + gap)
    return placed


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
