"""A page that explains a run: each output beside its training images and their weights."""

from __future__ import annotations

import contextlib
import html
import math
import os
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import torch

from golddiff import __version__
from golddiff.attribution import Attribution
from golddiff.denoiser import Denoiser
from golddiff.estimators.describe import describe
from golddiff.figures.curves import Panel, Series, draw_panels
from golddiff.figures.sources import figure, heavy, image_name, percent
from golddiff.recording import Subsets
from golddiff.samplers import check_denoises
from golddiff.sampling import Samples, about_denoiser
from golddiff.store.images import ImageStore
from golddiff.store.novelty import Novelty
from golddiff.system.arguments import path_of
from golddiff.system.errors import ArgumentError
from golddiff.system.files import atomic_write, check_writable
from golddiff.system.numbers import F64, I64
from golddiff.system.pictures import Pixels, data_uri, rendered, to_pixels
from golddiff.system.units import counted

ToImages = Callable[[torch.Tensor], torch.Tensor]

TOLERANCE = 1e-4  # units of x0
MAX_TOLERANCE = 1e-2  # where float32 leaves an output less certain, the check decides nothing
MAX_CARDS = 64
SOURCES = 8  # training images shown of each output
# Okabe and Ito's palette, safe for colour-blind readers, and a violet
COLOURS = ("E69F00", "56B4E9", "009E73", "F0E442", "0072B2", "D55E00", "CC79A7", "8A63D2")
DARKEST, LIGHTEST = 0x70, 0xC0  # range of greys for all other sources
LOCATION = {"image": "output", "value": "output value", "pixel": "pixel"}
PLOT_NOTE = (
    "k images are weighed at each step. The effective number, exp of the entropy of their weights, "
    "is the number of images that matter at one location. Lines are medians over the outputs; "
    "bands show the whole range."
)
KNOWN = (
    " What is known of the picture is put back after the photographs are weighed; sources are "
    "those of the weighed photographs, distances those of the finished picture."
)
BAND = (np.median, np.min, np.max)


def write_report(
    samples: Samples,
    denoiser: Denoiser,
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Any] | None = None,
    to_images: ToImages = lambda values: values,
) -> float:
    """Write one self-contained HTML page, without scripts, other files or network requests.

    Args:
        samples: result of ``sample(..., attribution=True)``.
        denoiser: the denoiser that generated them, or an equal one.
        path: the ``.html`` file to write.
        settings: other settings to list, such as seed, sampler and labels.
        to_images: converts stored values to images for display. For latents, a decoder from
            (b, *shape) to images (b, C, H, W) in [-1, 1].

    Returns:
        The largest difference between an output and the one recomputed from its training images
        and their weights, in units of x0.

    Raises:
        ArgumentError: samples without attribution, of points or of another denoiser; a path that
            cannot be written.
    """
    target = path_of("path", path)
    check_writable("path", target, (".html", ".htm"))
    check_denoises(denoiser)
    attributions, store = getattr(samples, "attribution", None), denoiser.store
    if attributions is None or samples.subsets is None:
        raise ArgumentError(
            "samples: attribution was not recorded; generate them with attribution=True"
        )
    restored = samples.about["method"].startswith("Restoring(")
    # A restoration's page takes the denoiser that it restores with.
    if not restored and {**samples.about, **about_denoiser(denoiser)} != samples.about:
        raise ArgumentError(f"denoiser: got {denoiser!r}, which did not generate {samples!r}")
    if len(store.shape) != 3:
        raise ArgumentError(
            f"samples: got points of shape {store.shape}, a report shows images (C, H, W)"
        )
    limit = 1.0 if store.is_pixels and samples.about["sampler"] == "ddim" else math.inf
    errors = [
        float((attribution.reconstruct().clip(-limit, limit) - image).abs().max())
        for attribution, image in zip(attributions, samples.images, strict=True)
    ]
    shown = samples.images[:MAX_CARDS]
    novelty = samples.novelty if store.n > 1 else None
    cards = "\n".join(
        _card(i, shown[i], attributions[i], novelty, to_images, restored) for i in range(len(shown))
    )
    passed, verdict = _verdict(errors, [attribution.rounding for attribution in attributions])
    body = f"""<h2>Outputs</h2>
<p class="soft">{_note(len(attributions), novelty)}{KNOWN if restored else ""}</p>
{cards}
<h2>Images weighed at each step</h2>
<p class="soft">{PLOT_NOTE}</p>
{_plot(samples.subsets)}
<h2>Settings</h2>
<dl>
{_settings(samples, denoiser, settings or {})}
</dl>"""
    write_page(
        target,
        "Where these images come from",
        f"{len(attributions)} outputs of {samples.about['method']}, golddiff {__version__}",
        passed,
        f"Check: each output is recomputed from its training images and their weights"
        f"{', and what is known of the picture' if restored else ''}. The largest "
        f"difference in this run is {max(errors):.2g}: {verdict}.",
        body,
    )
    return max(errors)


def _verdict(errors: list[float], roundings: list[float]) -> tuple[bool, str]:
    """Whether the errors of the outputs are within their tolerances, and the verdict in HTML."""
    tolerances = np.clip(roundings, TOLERANCE, MAX_TOLERANCE)
    passed, explained = (
        bool(np.all(errors <= most)) for most in (tolerances, np.maximum(tolerances, roundings))
    )
    word = "pass" if passed else "undecided" if explained else "FAIL"
    used = " to ".join(f"{t:.2g}" for t in sorted({tolerances.min(), tolerances.max()}))
    why = "" if max(roundings) <= TOLERANCE else ", more where float32 leaves weights uncertain"
    left = "" if passed or not explained else f"; rounding may explain {max(roundings):.2g}"
    return passed, f"<b>{word}</b> (tolerance {used}{why}{left})"


def _card(
    number: int, image: torch.Tensor, attribution: Attribution, novelty: Novelty | None,
    to_images: ToImages, restored: bool,
) -> str:  # fmt: skip
    """HTML of output ``number`` (C, H, W); no novelty if there is one training image."""
    store = attribution.store
    rows, weights = attribution.top_images(SOURCES)
    shown = heavy(weights)
    rows, weights = rows[:shown], weights[:shown]
    main = attribution.patchwork()
    nearest, nearness = 0, ""
    if novelty is not None:
        nearest = int(novelty.nearest[number])
        copied = ", a copy" if novelty.copies[number] else ""
        distance, value = float(novelty.distances[number, 0]), float(novelty.novelty[number])
        nearness = f": distance {distance:.4f}, novelty {value:.2f}{copied}"
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
            "patchwork: the colour of each pixel's main source (of equals the first); others grey",
        ),
        figure(
            drawn[1],
            "nearest training image",
            f"nearest training image, {image_name(store, nearest)}{nearness}",
        ),
    )
    return f"""<article>
<h3>Output {number}</h3>
<div class="main">{"".join(figures)}</div>
<p><small>{_facts(attribution, weights, restored)}</small></p>
<div class="sources">
{sources}</div>
</article>"""


def _facts(attribution: Attribution, weights: F64, restored: bool) -> str:
    location, median = LOCATION[attribution.locations], float(np.median(attribution.effective))
    least, most = float(attribution.effective.min()), float(attribution.effective.max())
    spread = "" if attribution.locations == "image" else f" (median; {least:.3g} to {most:.3g})"
    left = len(attribution.images) - len(weights)
    held = percent(float(weights.sum()))
    others = f"; {counted(left, 'other')} with the rest" if left and held != "100%" else ""
    # A restoration is the weighed images with what is known put back.
    error = "" if restored else f", and give the output within {attribution.top_error():.2g} (RMSE)"
    return (
        f"Effective number of images of one {location}: {median:.3g}{spread}. "
        f"{counted(len(weights), 'image')} below, with {held} of the weight{others}. "
        f"The {attribution.sources.shape[1]} main training images of each {location} alone hold "
        f"{percent(float(attribution.mass.mean()))} of its weight on average{error}."
    )


def _source(
    store: ImageStore, row: int, weight: float, area: float, pixels: Pixels, colour: str
) -> str:
    caption = f"<b>{percent(weight)}</b> {image_name(store, row)}<br>main source of {percent(area)}"
    return figure(pixels, f"training image {row}", caption, f"--mark: #{colour}") + "\n"


def _patchwork(main: I64, rows: I64) -> Pixels:
    # The golden ratio gives consecutive rows different greys.
    grey = DARKEST + (main * 0.6180339887 % 1) * (LIGHTEST - DARKEST)
    picture = np.repeat(grey.astype(np.uint8)[..., None], 3, axis=-1)
    for row, colour in zip(rows, COLOURS, strict=False):
        picture[main == row] = tuple(bytes.fromhex(colour))
    return picture


def _plot(subsets: Subsets) -> str:
    """Plot of the number of images weighed at each step: medians, and bands from min to max."""
    counts = {"candidates m": subsets.screened, "weighed k": subsets.kept}
    if np.array_equal(subsets.screened, subsets.kept):
        del counts["candidates m"]
    lines = [
        Series(name, subsets.sigmas, *(reduce(values, axis=1).tolist() for reduce in BAND))
        for name, values in {**counts, "effective number": subsets.effective}.items()
    ]
    panel = Panel("", "noise level σ of each step", "images", lines, "log", "log", falling=True)
    picture = data_uri(rendered(draw_panels([panel])))
    return f'<img class="plot" alt="images weighed at each step" src="{picture}">'


def _note(outputs: int, novelty: Novelty | None) -> str:
    which = "" if outputs <= MAX_CARDS else f"The first {MAX_CARDS} of {outputs:,} outputs. "
    scale = (
        ""
        if novelty is None
        else " Novelty is an output's distance divided by the mean distance of a training image to "
        f"its nearest other one, {novelty.spacing:.3f}."
    )
    return (
        f"{which}The percentage of a training image is its weight averaged over the picture. "
        "Distances are root mean square differences on a scale from -1 to 1, and the nearest image "
        f"is found by exact search.{scale}"
    )


def _settings(samples: Samples, denoiser: Denoiser, others: Mapping[str, Any]) -> str:
    levels = samples.sigmas
    described: dict[str, Any] = {}
    with contextlib.suppress(ArgumentError):  # a denoiser defined by the caller
        described = describe(denoiser)
    lines = {
        "training set": samples.about["data"],
        "images checksum": samples.about["images_checksum"],
        "method": samples.about["method"],
        **dict(_flat(described)),
        "steps": f"{len(levels)}, noise {levels[0]:.3g} to {levels[-1]:.2g}",
        **{name: str(value) for name, value in others.items() if value is not None},
    }
    return "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in lines.items()
    )


def _flat(description: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in description.items():
        if isinstance(value, Mapping):
            lines += _flat(value)
        elif name not in ("method", "memory_limit"):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            if name in ("k_min", "k_max", "m_min", "m_max"):  # a fraction, or a count
                is_fraction = isinstance(value, float)
                text = f"{100 * value:.4g}% of images" if is_fraction else f"{value:,} images"
            # The seed of random golden subsets, as distinct from the seed of the run.
            shown = "subset seed" if name == "seed" else name.replace("_", " ")
            lines.append((shown, text))
    return lines


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
