"""A page that explains a run: every output beside the training images that it is made of."""

from __future__ import annotations

import html
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from golddiff import __version__
from golddiff.attribution import Attribution
from golddiff.denoiser import Denoiser
from golddiff.estimators.describe import describe
from golddiff.evaluation.report.cards import ToImages, card, write_page
from golddiff.figures.curves import Panel, Series, draw_panels
from golddiff.recording import Subsets
from golddiff.store.novelty import Novelty
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable
from golddiff.system.pictures import data_uri, rendered
from golddiff.system.units import shape_text

if TYPE_CHECKING:
    from golddiff.sampling import Samples

TOLERANCE = 1e-4
MOST_CARDS = 64
PLOT_NOTE = (
    "k images are weighed at each step; the effective number, exp of the entropy of their weights, "
    "says how many of them matter at one location. Lines are medians over the outputs, bands the "
    "whole range."
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
    """Write one HTML page with everything in it: no scripts, no other files, no requests.

    Args:
        samples: of ``sample(..., attribution=True)``.
        denoiser: what generated them.
        path: the page, ``.html``.
        settings: what else to list: the seed, the sampler, the labels asked for.
        to_images: draws what the store holds: for latents, a decoder from (b, *shape) to images
            (b, C, H, W) in [-1, 1].

    Returns:
        The largest difference between an output and its weights summed again, in units of x0.

    Raises:
        ArgumentError: samples without attribution, points instead of images, or a path that
            cannot be written.
    """
    target = Path(path)
    check_writable("path", target, (".html", ".htm"))
    found, subsets, store = samples.attribution, samples.subsets, denoiser.store
    if found is None or subsets is None:
        raise ArgumentError(
            "samples: their sources were not recorded; generate them with attribution=True"
        )
    if len(store.shape) != 3:
        raise ArgumentError(
            f"samples: got points of shape {store.shape}, a report shows images (C, H, W)"
        )
    off = max(
        float((_in_range(one) - image).abs().max())
        for one, image in zip(found, samples.images, strict=True)
    )
    shown = samples.images[:MOST_CARDS]
    new = samples.novelty if store.n > 1 else None
    cards = [card(i, shown[i], found[i], new, to_images) for i in range(len(shown))]
    passed = off <= TOLERANCE
    body = f"""<h2>Settings</h2>
<dl>
{_settings(samples, denoiser, settings or {})}
</dl>
<h2>Images weighed at each step</h2>
<p class="soft">{PLOT_NOTE}</p>
{_plot(subsets)}
<h2>Outputs</h2>
<p class="soft">{_note(len(found), new)}</p>
{os.linesep.join(cards)}"""
    write_page(
        target,
        "Where these images come from",
        f"{len(found)} outputs of {samples.about['method']}, golddiff {__version__}",
        passed,
        f"The weights, summed again over the training images, equal the outputs: the largest "
        f"difference in this run is {off:.2g}, <b>{'pass' if passed else 'FAIL'}</b> against "
        f"{TOLERANCE:g}.",
        body,
    )
    return off


def _plot(subsets: Subsets) -> str:
    """How many images each denoiser call weighed: medians, and bands from the least to the most."""
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


def _note(outputs: int, found: Novelty | None) -> str:
    which = "" if outputs <= MOST_CARDS else f"The first {MOST_CARDS} of {outputs:,} outputs. "
    scale = (
        ""
        if found is None
        else f" A training image is {found.spacing:.3f} from the nearest other one on average; "
        "novelty is an output's distance over that."
    )
    return (
        f"{which}A source's percentage is its weight averaged over the picture. Distances are "
        f"Euclidean over the square root of the number of values, in a scale from -1 to 1, by "
        f"exact search over all training images.{scale}"
    )


def _in_range(one: Attribution) -> torch.Tensor:
    """The denoiser's output again, clipped as samples are."""
    image = one.reconstruct()
    return image.clip(-1, 1) if one.store.is_pixels else image


def _settings(samples: Samples, denoiser: Denoiser, given: Mapping[str, Any]) -> str:
    store = denoiser.store
    levels = samples.sigmas
    lines = {
        "training set": f"{store.manifest.source}: {store.n:,} images, {shape_text(store.shape)}",
        "method": samples.about["method"],
        **dict(_flat(_description(denoiser))),
        "steps": f"{len(levels)}, noise {levels[0]:.3g} to {levels[-1]:.2g}",
        **{name: str(value) for name, value in given.items() if value is not None},
    }
    return "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in lines.items()
    )


def _description(denoiser: Denoiser) -> dict[str, Any]:
    try:
        return describe(denoiser)
    except ArgumentError:  # a denoiser of the caller's own
        return {}


def _flat(description: Mapping[str, Any]) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    for name, value in description.items():
        if isinstance(value, Mapping):
            lines += _flat(value)
        elif name not in ("method", "memory_limit"):
            text = f"{value:g}" if isinstance(value, float) else str(value)
            if name in ("k_min", "k_max", "m_min", "m_max"):  # a fraction, or a count
                share = isinstance(value, float)
                text = f"{100 * value:.4g}% of images" if share else f"{value:,} images"
            # Of the images drawn at random; the run has a seed of its own.
            shown = "subset seed" if name == "seed" else name.replace("_", " ")
            lines.append((shown, text))
    return lines
