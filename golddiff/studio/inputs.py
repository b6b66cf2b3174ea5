"""Drawings from the page."""

from __future__ import annotations

import base64
import binascii

from PIL import Image

from golddiff.sources.picture import decoded
from golddiff.system.errors import ArgumentError

SIDE = 256
MOST_CHARACTERS = 1_000_000  # a sheet of random colours has a third of that
_URL = "data:image/png;base64,"


def drawn(url: object) -> Image.Image:
    """A drawing from the page, a data URL of a PNG, black where there is no ink."""
    text = url if isinstance(url, str) else ""
    if not text.startswith(_URL) or len(text) > MOST_CHARACTERS:
        raise ArgumentError("drawing: got no drawing of this page")
    try:
        data = base64.b64decode(text[len(_URL) :], validate=True)
    except binascii.Error as error:
        raise ArgumentError("drawing: got no drawing of this page") from error
    image = decoded("drawing", data, SIDE**2).convert("RGB")
    if image.getextrema() == ((0, 0),) * 3:
        raise ArgumentError("drawing: it is empty; draw something first")
    return image
