"""Training images with their weights, as pieces of a page: what a pixel or an image is made of."""

from __future__ import annotations

import html

from PIL import Image

from golddiff.store.images import ImageStore
from golddiff.system.pictures import Pixels, data_uri


def percent(share: float) -> str:
    """'100%', '12.3%', '0.07%', '3e-07%': two digits where one would be none."""
    if share >= 0.9995 or share == 0:
        return f"{share:.0%}"
    return f"{share:.1%}" if share >= 0.001 else f"{100 * share:.2g}%"


def class_name(store: ImageStore, label: int) -> str:
    """The name of a class, or 'class 3' where it has none; plain text."""
    names = store.class_names or []
    return names[label] if label < len(names) else f"class {label}"


def image_name(store: ImageStore, row: int) -> str:
    """'IMG_0012.jpg', or '#12' where it was no file, and its class: escaped for a page."""
    names = store.names_of([row])
    name = f"#{row}" if names is None else html.escape(names[0])
    if store.labels is None:
        return name
    kind = html.escape(class_name(store, int(store.labels[row])))
    return name if f"/{kind}/" in f"/{name}" else f"{name} ({kind})"


def figure(picture: Image.Image | Pixels, alt: str, caption: str, style: str = "") -> str:
    """A ``figure`` element with HTML as its caption; ``style`` is CSS."""
    styled = f' style="{style}"' if style else ""
    return (
        f'<figure{styled}><img alt="{alt}" src="{data_uri(picture)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )
