"""Explain a pixel: its training images and their weights, at one step or at every step."""

from __future__ import annotations

import html
import math
import time

import numpy as np
from matplotlib.figure import Figure
from PIL import Image, ImageDraw

from golddiff.attribution import PixelSources, pixel_sources
from golddiff.estimators.registry import SHOWN
from golddiff.figures.curves import Panel, Series, draw_panels
from golddiff.figures.sources import figure, heavy, image_name, percent
from golddiff.figures.trajectory import level, thinned
from golddiff.studio.grid import mark
from golddiff.studio.run import Curves, Run, Selection
from golddiff.system.pictures import cells
from golddiff.system.units import counted

TOP = 12
THUMBNAIL = 160
MAX_LEVELS = 16  # noise levels in the curves computed after a click
MAX_SECONDS = 4.0  # after which remaining curves are omitted
NOISE = "noise σ (denoising runs to the right)"


def sources_at(run: Run, selected: Selection, step: int) -> PixelSources:
    """The training images behind a pixel at one step."""
    state = run.state(selected.method, step)
    assert state is not None
    with run.opened.lock:
        return pixel_sources(
            run.denoisers[selected.method], state.x[selected.image], state.sigma,
            selected.y, selected.x, top=TOP, labels=run.settings.label,
        )  # fmt: skip


def curves(run: Run, selected: Selection, most_seconds: float = MAX_SECONDS) -> Curves:
    """The effective number of images behind a pixel, by step, for each method with sources.

    The selected pixel's method comes first; others are omitted after ``most_seconds``.
    """
    done = run.steps_done  # in a stopped run some methods may be one step ahead
    if (selected, done) in run.curves:
        return run.curves[selected, done]
    by_method: Curves = {}
    start = time.perf_counter()
    steps = thinned(done, MAX_LEVELS)
    for method in sorted(run.with_sources, key=lambda method: method != selected.method):
        if time.perf_counter() - start > most_seconds:
            break
        pixel = Selection(method, selected.image, selected.y, selected.x)
        points = [(run.sigmas[step], sources_at(run, pixel, step).effective) for step in steps]
        by_method[method] = points
    run.curves[selected, done] = by_method
    return by_method


def sources_html(run: Run, selected: Selection, step: int, sources: PixelSources) -> str:
    """The sources as HTML: thumbnails with their weights and classes."""
    store, state = run.opened.store, run.state(selected.method, step)
    assert state is not None
    pixel = state.x0[selected.image, :, selected.y, selected.x]
    value = ", ".join(f"{v:+.2f}" for v in pixel.tolist())
    shown = heavy(sources.source_weights)
    mass = float(sources.source_weights[:shown].sum())
    # Kamb weighs patches, which may come from other positions than the pixel's.
    kind = "patches" if len(set(sources.positions.tolist())) > 1 else "images"
    head = (
        f"<b>{html.escape(SHOWN[selected.method].title)}</b>, image {selected.image + 1}, "
        f"row {selected.y}, column {selected.x}, noise σ = {level(run.sigmas[step])}: "
        f"value <b>{value}</b>, from {counted(len(sources.images), 'training image')}; "
        f"effectively <b>{sources.effective:,.1f}</b> of them. "
        f"The heaviest {kind} ({percent(mass)} of the weight):"
    )
    width = store.shape[2]
    figures = []
    for i, pixels in enumerate(cells(store.images(sources.sources[:shown]), THUMBNAIL)):
        row, weight = int(sources.sources[i]), float(sources.source_weights[i])
        y, x = divmod(int(sources.positions[i]), width)
        picture = Image.fromarray(pixels)
        mark(ImageDraw.Draw(picture), 0, 0, x, y, math.ceil(THUMBNAIL / width))
        bar = f'<div class="bar"><div style="width:{100 * weight:.1f}%"></div></div>'
        caption = f"{bar}<b>{percent(weight)}</b><br>{image_name(store, row)}"
        figures.append(figure(picture, f"training image {row}", caption))
    return f'<p>{head}</p><div class="sources">{"".join(figures)}</div>'


def draw_plots(
    run: Run, step: int, selected: Selection, sources: PixelSources | None, by_method: Curves
) -> Figure | None:
    """Plots of weights, effective sizes and golden subset sizes; None if the run has none."""
    sigma, budgets = run.sigmas[step], run.budgets(selected.method)
    panels = []
    if sources is not None:
        weights = np.sort(sources.weights[sources.weights > 0])[::-1].tolist()
        line = Series(SHOWN[selected.method].title, list(range(1, len(weights) + 1)), weights)
        title = f"weights of the pixel: effectively {sources.effective:,.1f} images"
        axes = ("training images, heaviest first", f"weight at σ = {level(sigma)}")
        effective = max(sources.effective, 1)
        panels.append(Panel(title, *axes, [line], "log", "log", mark=effective))
    if by_method:
        lines = [
            Series(SHOWN[method].title, [s for s, _ in points], [number for _, number in points])
            for method, points in by_method.items()
        ]
        omitted = len(run.with_sources) - len(by_method)
        slow = f" ({omitted} slow omitted)" if omitted else ""
        title = f"effective number of images{slow}"
        panels.append(Panel(title, NOISE, "images", lines, "log", "log", True, mark=sigma))
    if budgets is not None:
        m, k = zip(*budgets, strict=True)
        all_images = [run.opened.store.count_of(run.settings.label)] * len(m)
        lines = [
            Series("all N", run.sigmas, all_images, dashed=True),
            Series("$m_t$ screened", run.sigmas, m),
            Series("$k_t$ weighed", run.sigmas, k),
        ]
        title = f"golden subset of {SHOWN[selected.method].title}"
        panels.append(Panel(title, NOISE, "images", lines, "log", "log", True, mark=sigma))
    return draw_panels(panels) if panels else None
