"""Drawings from the page."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from importlib import resources

import gradio as gr
from PIL import Image

from golddiff.sources.picture import decoded
from golddiff.system.errors import ArgumentError

SIDE = 256
MOST_CHARACTERS = 1_000_000  # a sheet of random colours has a third of that
_URL = "data:image/png;base64,"
_SKETCH = resources.files("golddiff.studio").joinpath("sketch.js").read_text("utf-8")


def sheet(elem_id: str, inks: Sequence[str]) -> gr.HTML:
    """A sheet to draw on, of ours, not gradio's: that one takes files too, of any size and kind."""
    pens = "".join(
        f'<button data-ink="{ink}" style="background: {ink}" aria-label="Ink {ink}"></button>'
        for ink in inks
    )
    html = (
        f'<div class="paper"><canvas width="{SIDE}" height="{SIDE}" aria-label="Sheet to draw on">'
        f"</canvas></div><div>{pens}"
        '<input type="range" min="2" max="60" value="22" aria-label="Width of the brush">'
        "<button data-wipe>Clear</button></div>"
    )
    return gr.HTML(html_template=html, js_on_load=_SKETCH, elem_id=elem_id, padding=True)


def drawn(url: object) -> Image.Image | None:
    """A drawing from the page, a data URL of a PNG, black where there is no ink; None: no ink."""
    text = url if isinstance(url, str) else ""
    if not text.startswith(_URL) or len(text) > MOST_CHARACTERS:
        raise ArgumentError("drawing: got no drawing of this page")
    try:
        data = base64.b64decode(text[len(_URL) :], validate=True)
    except binascii.Error as error:
        raise ArgumentError("drawing: got no drawing of this page") from error
    image = decoded("drawing", data, SIDE**2).convert("RGB")
    return None if image.getextrema() == ((0, 0),) * 3 else image
