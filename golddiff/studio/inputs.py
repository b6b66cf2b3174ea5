"""The drawing canvas of the page, and decoding of the drawings that it sends."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib import resources

import gradio as gr
from PIL import Image

from golddiff.sources.picture import decode_picture
from golddiff.system.errors import ArgumentError

SIDE = 256
MAX_CHARACTERS = 1_000_000  # three times the length for random colours, the worst case
_URL = "data:image/png;base64,"
_SKETCH = resources.files("golddiff.studio").joinpath("sketch.js").read_text("utf-8")


def sheet(elem_id: str, inks: Sequence[str]) -> gr.HTML:
    """A drawing canvas. Gradio's own also accepts files of any size and type, so it is not used."""
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
    """Decode a drawing, a data URL of a PNG with a black background; None if it is empty."""
    text = url if isinstance(url, str) else ""
    if not text.startswith(_URL) or len(text) > MAX_CHARACTERS:
        raise ArgumentError("drawing: got no drawing of this page")
    try:
        data = base64.b64decode(text[len(_URL) :], validate=True)
    except ValueError as error:  # also of characters that are not ASCII
        raise ArgumentError("drawing: got no drawing of this page") from error
    image = decode_picture("drawing", data, SIDE**2).convert("RGB")
    return None if image.getextrema() == ((0, 0),) * 3 else image
