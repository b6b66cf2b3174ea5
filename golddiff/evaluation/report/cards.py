"""The report pages: one output of a run with all that is known of its sources, and the page."""

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
from golddiff.system.files import written_whole
from golddiff.system.numbers import F64, I64
from golddiff.system.pictures import to_pixels

ToImages = Callable[[torch.Tensor], torch.Tensor]

SOURCES = 8

# Okabe and Ito's, told apart by colour-blind readers too, and a violet; then grey for the rest.
COLOURS = ("E69F00", "56B4E9", "009E73", "F0E442", "0072B2", "D55E00", "CC79A7", "8A63D2")
# Greys between these: neighbouring patches of other sources stay apart.
DARKEST, LIGHTEST = 0x70, 0xC0


def card(
    number: int, image: torch.Tensor, found: Attribution, new: Novelty | None, to_images: ToImages
) -> str:
    """Output ``number`` (C, H, W) as an ``article``; ``new`` is None of a single training image."""
    store = found.store
    rows, weights = found.top_images(SOURCES)
    main = found.patchwork()
    nearest = 0 if new is None else int(new.nearest[number])
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
            "patchwork: each pixel in the colour of its main source, other sources in greys",
        ),
        figure(
            drawn[1],
            "nearest training image",
            f"nearest training image, {image_name(store, nearest)}{_nearness(number, new)}",
        ),
    )
    return f"""<article>
<h3>Output {number}</h3>
<div class="main">{"".join(figures)}</div>
<p><small>{_facts(found, weights)}</small></p>
<div class="sources">
{sources}</div>
</article>"""


def _nearness(number: int, new: Novelty | None) -> str:
    if new is None:
        return ""
    copied = ", a copy" if new.copies[number] else ""
    distance, novelty = float(new.distances[number, 0]), float(new.novelty[number])
    return f": distance {distance:.4f}, novelty {novelty:.2f}{copied}"


_LOCATION = {"image": "output", "value": "output value", "pixel": "pixel"}


def _facts(found: Attribution, weights: F64) -> str:
    place, middle = _LOCATION[found.locations], float(np.median(found.effective))
    least, most = float(found.effective.min()), float(found.effective.max())
    spread = "" if found.locations == "image" else f" (median; {least:.3g} to {most:.3g})"
    others = len(found.images) - len(weights)
    return (
        f"Effective number of images of one {place}: {middle:.3g}{spread}. "
        f"The {len(weights)} images below hold {percent(float(weights.sum()))} of the weight"
        f"{f', the {others:,} others the rest' if others else ''}. "
        f"The {found.sources.shape[1]} main sources of each {place} hold "
        f"{percent(float(found.mass.mean()))} on average; alone they give the output within "
        f"RMSE {found.top_error():.2g}."
    )


def _source(
    store: ImageStore, row: int, weight: float, area: float, pixels: NDArray[np.uint8], colour: str
) -> str:
    caption = f"<b>{percent(weight)}</b> {image_name(store, row)}<br>main in {percent(area)}"
    return figure(pixels, f"training image {row}", caption, f"--mark: #{colour}") + "\n"


def _patchwork(main: I64, rows: I64) -> NDArray[np.uint8]:
    # Multiplying by the golden ratio scatters rows that follow one another.
    grey = DARKEST + (main * 0.6180339887 % 1) * (LIGHTEST - DARKEST)
    picture = np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)
    for row, colour in zip(rows, COLOURS, strict=False):
        picture[main == row] = tuple(bytes.fromhex(colour))
    return picture


def write_page(
    target: Path, title: str, subtitle: str, passed: bool, verdict: str, body: str
) -> None:
    """Write a page, whole or not at all; titles are plain text, the others HTML."""
    page = Template((resources.files("golddiff") / "data" / "report.html").read_text("utf-8"))
    text = page.substitute(
        title=html.escape(title),
        subtitle=html.escape(subtitle),
        verdict_class="pass" if passed else "fail",
        verdict=verdict,
        body=body,
    )
    with written_whole("path", target) as temporary:
        temporary.write_text(text, encoding="utf-8")
