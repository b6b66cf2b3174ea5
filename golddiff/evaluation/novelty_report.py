"""A page of pictures beside their nearest training images, in ascending order of novelty."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

import torch

from golddiff import __version__
from golddiff.evaluation.report import MAX_CARDS, write_page
from golddiff.figures.sources import figure, image_name
from golddiff.store.images import ImageStore
from golddiff.store.novelty import Novelty
from golddiff.system.pictures import to_pixels


def write_novelty_report(
    result: Novelty,
    images: torch.Tensor,
    store: ImageStore,
    path: Path,
    names: Sequence[str],
    unreadable: int = 0,
) -> None:
    """Write one self-contained HTML page of ``images`` (B, C, H, W) in [-1, 1].

    ``result`` is their novelty from :func:`golddiff.novelty`; ``names`` may be empty.
    ``unreadable`` pictures are left out.
    """
    order = torch.argsort(result.novelty, stable=True)[:MAX_CARDS]
    drawn = to_pixels(images[order])
    nearest = to_pixels(store.images(result.nearest[order].numpy()))
    cards = []
    for i, own, other in zip(order.tolist(), drawn, nearest, strict=True):
        row, copied = int(result.nearest[i]), ", <b>a copy</b>" if result.copies[i] else ""
        name = html.escape(names[i]) if names else f"picture {i}"
        distance, second = result.distances[i].tolist()
        figures = (
            figure(own, f"picture {i}", f"{name}: novelty {result.novelty[i]:.2f}{copied}"),
            figure(
                other,
                "nearest training image",
                f"nearest: {image_name(store, row)}, "
                f"distance {distance:.4f}; to the second nearest {second:.4f}",
            ),
        )
        cards.append(f'<article><div class="main">{"".join(figures)}</div></article>')
    body, copies = "\n".join(cards), int(result.copies.sum())
    which = "" if len(images) <= MAX_CARDS else f"The {MAX_CARDS} with the lowest novelty. "
    write_page(
        path,
        "How new these pictures are",
        f"{len(images):,} pictures and {store.n:,} training images, golddiff {__version__}",
        copies == 0,
        f"Copies of training images: {copies:,} of {len(images):,} pictures. Mean novelty: "
        f"<b>{float(result.novelty.mean()):.2f}</b>."
        + (f" Left out, because unreadable: {unreadable:,}." if unreadable else ""),
        f"""<h2>Pictures</h2>
<p class="soft">{which}Novelty is the distance to the nearest training image, divided by the mean
distance of a training image to its nearest other one, {result.spacing:.3f}: 0 is a copy, 1 is as
new as an unseen picture of the same kind. A copy is less than a third as far from the nearest as
from the second nearest training image (Yoon et al. 2023).</p>
{body}""",
    )
