"""One output of a run with all that is known of its sources, as HTML."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from golddiff.attribution import Attribution
from golddiff.evaluation.figures.images import to_pixels
from golddiff.store.images import ImageStore

ToImages = Callable[[torch.Tensor], torch.Tensor]

SOURCES = 8

# Okabe and Ito's, told apart by colour-blind readers too, and a violet; then grey for the rest.
COLOURS = ("E69F00", "56B4E9", "009E73", "F0E442", "0072B2", "D55E00", "CC79A7", "8A63D2")
# Greys between these: neighbouring patches of other sources stay apart.
DARKEST, LIGHTEST = 0x70, 0xC0


def card(
    number: int,
    image: torch.Tensor,
    found: Attribution,
    nearest: int,
    nearness: str,
    to_images: ToImages,
) -> str:
    """An ``article`` element.

    Args:
        number: which output, from 0.
        image: (C, H, W) as the run returned it.
        found: its sources.
        nearest: row of the training image nearest to it.
        nearness: how near it is, in words.
        to_images: from values of the store to pixels in [-1, 1].
    """
    store = found.store
    rows, weights = found.top_images(SOURCES)
    drawn = to_pixels(
        to_images(torch.cat([image[None], store.images([nearest]), store.images(rows)]))
    )
    sources = "".join(
        _source(store, int(row), weight, _area(found, row), pixels, colour)
        for row, weight, pixels, colour in zip(rows, weights, drawn[2:], COLOURS, strict=False)
    )
    figures = (
        figure(drawn[0], f"output {number}", "output"),
        figure(
            _patchwork(found, rows),
            "patchwork map",
            "patchwork: each pixel in the colour of its main source, other sources in greys",
        ),
        figure(
            drawn[1],
            "nearest training image",
            f"nearest training image, {name(store, nearest)}: {nearness}",
        ),
    )
    return f"""<article>
<h3>Output {number}</h3>
<div class="main">{"".join(figures)}</div>
<p><small>{_facts(found, weights)}</small></p>
<div class="sources">
{sources}</div>
</article>"""


_LOCATION = {"image": "output", "value": "output value", "pixel": "pixel"}


def _facts(found: Attribution, weights: NDArray[np.float64]) -> str:
    place, middle = _LOCATION[found.locations], float(np.median(found.effective))
    least, most = float(found.effective.min()), float(found.effective.max())
    spread = "" if found.locations == "image" else f" (median; {least:.3g} to {most:.3g})"
    others = len(found.images) - len(weights)
    return (
        f"Effective number of images of one {place}: {middle:.3g}{spread}. "
        f"The {len(weights)} images below hold {_percent(float(weights.sum()))} of the weight"
        f"{f', the {others:,} others the rest' if others else ''}. "
        f"The {found.sources.shape[1]} main sources of each {place} hold "
        f"{_percent(float(found.mass.mean()))} on average; alone they give the output within "
        f"RMSE {found.top_error():.2g}."
    )


def _source(
    store: ImageStore, row: int, weight: float, area: float, pixels: NDArray[np.uint8], colour: str
) -> str:
    caption = f"<b>{_percent(weight)}</b> {name(store, row)}<br>main in {_percent(area)}"
    style = f' style="--mark: #{colour}"'
    return figure(pixels, f"training image {row}", caption, style) + "\n"


def figure(pixels: NDArray[np.uint8], alt: str, caption: str, style: str = "") -> str:
    """A ``figure`` element."""
    return (
        f'<figure{style}><img alt="{alt}" src="{data_uri(pixels)}">'
        f"<figcaption>{caption}</figcaption></figure>"
    )


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """(H, W) or (H, W, 3) pixels as a PNG inside the page."""
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


def _patchwork(found: Attribution, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    main = found.patchwork()
    # Multiplying by the golden ratio scatters rows that follow one another.
    grey = DARKEST + (main * 0.6180339887 % 1) * (LIGHTEST - DARKEST)
    picture = np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)
    for row, colour in zip(rows, COLOURS, strict=False):
        picture[main == row] = _rgb(colour)
    return picture


def _area(found: Attribution, row: int) -> float:
    return float((found.patchwork() == row).mean())


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour))


def name(store: ImageStore, row: int) -> str:
    """A training image by its row, and its class where it has one."""
    if store.labels is None:
        return f"#{row}"
    label = int(store.labels[row])
    named = store.class_names is not None and label < len(store.class_names)
    name = store.class_names[label] if named and store.class_names else f"class {label}"
    return f"#{row} ({html.escape(name)})"


def _percent(share: float) -> str:
    if share >= 0.9995 or share == 0:
        return f"{share:.0%}"
    return f"{share:.1%}" if share >= 0.001 else "< 0.1%"
