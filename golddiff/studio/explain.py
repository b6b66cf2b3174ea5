"""What is behind a pixel: its training images with their weights, at one step or at all."""

from __future__ import annotations

import base64
import html
import io
import time

import numpy as np
from PIL import Image, ImageDraw

from golddiff.attribution import PixelSources, pixel_sources
from golddiff.errors import ArgumentError
from golddiff.registry import SHOWN
from golddiff.studio.grid import MARK, level, thumbnail
from golddiff.studio.run import Curves, Run, Selection

TOP = 12
THUMBNAIL = 160
LEAST_SHARE = 1e-5
# At most so many noise levels and seconds for the curves of all methods after one click.
MOST_LEVELS = 16
MOST_SECONDS = 4.0


def sources_at(run: Run, selected: Selection, step: int) -> PixelSources:
    """The training images behind a pixel at one step.

    Raises:
        ArgumentError: a method that weighs no training images; nothing denoised yet.
    """
    frame = run.frame(selected.method, step)
    if frame is None:
        raise ArgumentError("nothing is denoised yet")
    with run.opened.lock:
        return pixel_sources(
            run.denoisers[selected.method], frame.x[selected.image], frame.sigma,
            selected.y, selected.x, top=TOP, labels=run.settings.label,
        )  # fmt: skip


def curves(run: Run, selected: Selection, most_seconds: float = MOST_SECONDS) -> Curves:
    """The effective number of images behind a pixel at every step, by each method that has it.

    Args:
        run: the run, complete or not.
        selected: the pixel; its method comes first, the others while there is time.
        most_seconds: for all of them.
    """
    done = len(run.frames[selected.method])
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
    kind = "patches" if _several(found) else "images"
    frame = run.frame(selected.method, step)
    head = (
        f"<b>{html.escape(SHOWN[selected.method].title)}</b>, image {selected.image + 1}, "
        f"row {selected.y}, column {selected.x}, noise σ = {level(frame.sigma) if frame else '?'}: "
        f"value <b>{value}</b>, a weighted sum over {len(found.images):,} training images; "
        f"effectively <b>{found.effective:,.1f}</b> of them. "
        f"The heaviest {kind}, together {_percent(mass)} of the weight:"
    )
    pictures = store.images(found.sources[:shown])
    factor = max(1, round(THUMBNAIL / store.shape[2]))
    figures = []
    for i, picture in enumerate(thumbnail(pictures, factor)):
        row, weight = int(found.sources[i]), float(found.source_weights[i])
        y, x = divmod(int(found.positions[i]), store.shape[2])
        _outline(picture, x * factor, y * factor, factor)
        figures.append(
            f'<figure><img src="{data_url(picture)}" alt="training image {row}">'
            f'<div class="bar"><div style="width:{100 * weight:.1f}%"></div></div>'
            f"<figcaption><b>{_percent(weight)}</b><br>#{row}{_class_of(run, row)}</figcaption>"
            "</figure>"
        )
    return f'<p>{head}</p><div class="sources">{"".join(figures)}</div>'


def message_html(text: str) -> str:
    """A plain sentence in the place of the sources."""
    return f'<p class="quiet">{html.escape(text)}</p>'


def data_url(picture: Image.Image) -> str:
    """A picture inside the page itself."""
    buffer = io.BytesIO()
    picture.save(buffer, "png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _percent(share: float) -> str:
    """'12.3%', '0.07%', '3e-07%': two digits where one would be none."""
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def _class_of(run: Run, row: int) -> str:
    store = run.opened.store
    if store.labels is None:
        return ""
    label = int(store.labels[row])
    names = store.class_names or []
    return f"<br>class {html.escape(names[label] if label < len(names) else str(label))}"


def _several(found: PixelSources) -> bool:
    """Whether sources are patches at places of their own (Kamb), not whole images."""
    return len(set(found.positions.tolist())) > 1


def _outline(picture: Image.Image, x: int, y: int, factor: int) -> None:
    room = max(0, (13 - factor) // 2)
    ImageDraw.Draw(picture).rectangle(
        (x - room, y - room, x + factor - 1 + room, y + factor - 1 + room), outline=MARK, width=4
    )
