"""Parts of the report pages: the card of one output with its sources, and the page itself."""

from __future__ import annotations

import html
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from string import Template

import numpy as np
import torch
from numpy.typing import NDArray

from golddiff.attribution import Attribution
from golddiff.figures.sources import figure, image_name, percent
from golddiff.store.images import ImageStore
from golddiff.store.novelty import Novelty
from golddiff.system.files import atomic_write
from golddiff.system.numbers import F64, I64
from golddiff.system.pictures import to_pixels

ToImages = Callable[[torch.Tensor], torch.Tensor]

SOURCES = 8

# Okabe and Ito's palette, safe for colour-blind readers, and a violet
COLOURS = ("E69F00", "56B4E9", "009E73", "F0E442", "0072B2", "D55E00", "CC79A7", "8A63D2")
# Range of greys for all other sources
DARKEST, LIGHTEST = 0x70, 0xC0


def card(
    number: int, image: torch.Tensor, attribution: Attribution, novelty: Novelty | None,
    to_images: ToImages,
) -> str:  # fmt: skip
    """HTML of output ``number`` (C, H, W); no novelty if there is one training image."""
    store = attribution.store
    rows, weights = attribution.top_images(SOURCES)
    main = attribution.patchwork()
    nearest = 0 if novelty is None else int(novelty.nearest[number])
    drawn = to_pixels(
        to_images(torch.cat([image[None], store.images([nearest]), store.images(rows)]))
    )
    sources = "".join(
        _source(store, int(row), weight, float((main == row).mean()), pixels, colour)
        for row, weight, pixels, colour in zip(rows, weights, drawn[2:], COLOURS, strict=False)
    )
    figures = (
        figure(drawn[0], f"output {number}", "output"),
        figure(
            _patchwork(main, rows),
            "patchwork map",
            "patchwork: each pixel has the colour of its main training image; others are grey",
        ),
        figure(
            drawn[1],
            "nearest training image",
            f"nearest training image, {image_name(store, nearest)}{_nearness(number, novelty)}",
        ),
    )
    return f"""<article>
<h3>Output {number}</h3>
<div class="main">{"".join(figures)}</div>
<p><small>{_facts(attribution, weights)}</small></p>
<div class="sources">
{sources}</div>
</article>"""


def _nearness(number: int, novelty: Novelty | None) -> str:
    if novelty is None:
        return ""
    copied = ", a copy" if novelty.copies[number] else ""
    distance, value = float(novelty.distances[number, 0]), float(novelty.novelty[number])
    return f": distance {distance:.4f}, novelty {value:.2f}{copied}"


_LOCATION = {"image": "output", "value": "output value", "pixel": "pixel"}


def _facts(attribution: Attribution, weights: F64) -> str:
    location, median = _LOCATION[attribution.locations], float(np.median(attribution.effective))
    least, most = float(attribution.effective.min()), float(attribution.effective.max())
    spread = "" if attribution.locations == "image" else f" (median; {least:.3g} to {most:.3g})"
    others = len(attribution.images) - len(weights)
    return (
        f"Effective number of images of one {location}: {median:.3g}{spread}. "
        f"The {len(weights)} images below hold {percent(float(weights.sum()))} of the weight"
        f"{f', and {others:,} others the rest' if others else ''}. "
        f"The {attribution.sources.shape[1]} main training images of each {location} alone hold "
        f"{percent(float(attribution.mass.mean()))} of its weight on average, and give the output "
        f"within {attribution.top_error():.2g} (RMSE)."
    )


def _source(
    store: ImageStore, row: int, weight: float, area: float, pixels: NDArray[np.uint8], colour: str
) -> str:
    caption = f"<b>{percent(weight)}</b> {image_name(store, row)}<br>main source of {percent(area)}"
    return figure(pixels, f"training image {row}", caption, f"--mark: #{colour}") + "\n"


def _patchwork(main: I64, rows: I64) -> NDArray[np.uint8]:
    # The golden ratio gives consecutive rows different greys.
    grey = DARKEST + (main * 0.6180339887 % 1) * (LIGHTEST - DARKEST)
    picture = np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)
    for row, colour in zip(rows, COLOURS, strict=False):
        picture[main == row] = tuple(bytes.fromhex(colour))
    return picture


def write_page(
    target: Path, title: str, subtitle: str, passed: bool, verdict: str, body: str
) -> None:
    """Write a page atomically; ``title`` and ``subtitle`` are plain text, the others HTML."""
    page = Template((resources.files("golddiff") / "data" / "report.html").read_text("utf-8"))
    text = page.substitute(
        title=html.escape(title),
        subtitle=html.escape(subtitle),
        verdict_class="pass" if passed else "fail",
        verdict=verdict,
        body=body,
    )
    with atomic_write("path", target) as temporary:
        temporary.write_text(text, encoding="utf-8")
