"""What is behind a pixel: its training images with their weights, at one step or at all."""

from __future__ import annotations

import html
import math
import time

import numpy as np
from PIL import Image, ImageDraw

from golddiff.attribution import PixelSources, pixel_sources
from golddiff.estimators.registry import SHOWN
from golddiff.figures.sources import figure, image_name, percent
from golddiff.figures.trajectory import level
from golddiff.studio.grid import mark
from golddiff.studio.run import Curves, Run, Selection
from golddiff.system.errors import ArgumentError
from golddiff.system.pictures import cells

TOP = 12
THUMBNAIL = 160
LEAST_SHARE = 1e-5
# At most so many noise levels and seconds for the curves of all methods after one click.
MOST_LEVELS = 16
MOST_SECONDS = 4.0


def sources_at(run: Run, selected: Selection, step: int) -> PixelSources:
    """The training images behind a pixel at one step."""
    state = run.state(selected.method, step)
    if state is None:
        raise ArgumentError("nothing is denoised yet")
    with run.opened.lock:
        return pixel_sources(
            run.denoisers[selected.method], state.x[selected.image], state.sigma,
            selected.y, selected.x, top=TOP, labels=run.settings.label,
        )  # fmt: skip


def curves(run: Run, selected: Selection, most_seconds: float = MOST_SECONDS) -> Curves:
    """The effective number of images behind a pixel at every step, by each method that has it.

    The chosen pixel's method comes first, the others while there is time.
    """
    done = len(run.states[selected.method])
    if (selected, done) in run.curves:
        return run.curves[selected, done]
    made = Curves()
    start = time.perf_counter()
    steps = np.unique(np.linspace(0, done - 1, min(done, MOST_LEVELS)).round().astype(int))
    others = (m for m in run.settings.methods if m != selected.method)
    for method in [selected.method, *others]:
        if time.perf_counter() - start > most_seconds:
            made.left_out.append(SHOWN[method].title)
            continue
        here = Selection(method, selected.image, selected.y, selected.x)
        try:
            made.effective[method] = [
                (run.sigmas[step], sources_at(run, here, int(step)).effective) for step in steps
            ]
        except ArgumentError:
            continue  # Wiener: it weighs no images
    run.curves[selected, done] = made
    return made


def sources_html(run: Run, selected: Selection, step: int, found: PixelSources) -> str:
    """The sources as small pictures with their weights and classes, as a piece of a page."""
    store = run.opened.store
    value = ", ".join(f"{v:+.2f}" for v in found.value)
    shown = max(1, int((found.source_weights >= LEAST_SHARE).sum()))
    mass = float(found.source_weights[:shown].sum())
    # Kamb's are patches at places of their own, not whole images.
    kind = "patches" if len(set(found.positions.tolist())) > 1 else "images"
    head = (
        f"<b>{html.escape(SHOWN[selected.method].title)}</b>, image {selected.image + 1}, "
        f"row {selected.y}, column {selected.x}, noise σ = {level(run.sigmas[step])}: "
        f"value <b>{value}</b>, a weighted sum over {len(found.images):,} training images; "
        f"effectively <b>{found.effective:,.1f}</b> of them. "
        f"The heaviest {kind}, together {percent(mass)} of the weight:"
    )
    width = store.shape[2]
    figures = []
    for i, pixels in enumerate(cells(store.images(found.sources[:shown]), THUMBNAIL)):
        row, weight = int(found.sources[i]), float(found.source_weights[i])
        y, x = divmod(int(found.positions[i]), width)
        picture = Image.fromarray(pixels)
        mark(ImageDraw.Draw(picture), 0, 0, x, y, math.ceil(THUMBNAIL / width))
        bar = f'<div class="bar"><div style="width:{100 * weight:.1f}%"></div></div>'
        caption = f"{bar}<b>{percent(weight)}</b><br>{image_name(store, row)}"
        figures.append(figure(picture, f"training image {row}", caption))
    return f'<p>{head}</p><div class="sources">{"".join(figures)}</div>'


def message_html(text: str) -> str:
    """A plain sentence in the place of the sources."""
    return f'<p class="quiet">{html.escape(text)}</p>'
