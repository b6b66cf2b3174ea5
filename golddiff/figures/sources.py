"""HTML for pages that show training images with their weights."""

from __future__ import annotations

import html

from PIL import Image

from golddiff.store.images import ImageStore
from golddiff.system.numbers import F64
from golddiff.system.pictures import Pixels, data_uri

MIN_SHARE = 1e-5  # of the weight, below which an image is not shown


def heavy(weights: F64) -> int:
    """How many of some descending weights are shown: at least one."""
    return max(1, int((weights >= MIN_SHARE).sum()))


def percent(share: float) -> str:
    """A share as '100%', '12.3%', '0.07%' or '3e-07%'; two digits if it is below 0.1%."""
    if share >= 0.9995 or share == 0:
        return f"{share:.0%}"
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def class_name(store: ImageStore, label: int) -> str:
    """The name of a class, or 'class 3' if it has none; not escaped."""
    names = store.class_names or []
    return names[label] if label < len(names) else f"class {label}"


def image_name(store: ImageStore, row: int) -> str:
    """The file name of an image ('#12' if it has none) and its class, escaped for HTML."""
    names = store.names_of([row])
    name = f"#{row}" if names is None else html.escape(names[0])
    if store.labels is None:
        return name
    kind = html.escape(class_name(store, int(store.labels[row])))
    return name if f"/{kind}/" in f"/{name}" else f"{name} ({kind})"


def figure(picture: Image.Image | Pixels, alt: str, caption: str, style: str = "") -> str:
    """A ``figure`` element; ``caption`` is HTML and ``style`` is CSS."""
    styled = f' style="{style}"' if style else ""
    return (
        f'<figure{styled}><img alt="{alt}" src="{data_uri(picture)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
