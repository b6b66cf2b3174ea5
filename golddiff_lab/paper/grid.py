"""The qualitative grid: all methods from the same noise, with the oracle in the last row."""

from __future__ import annotations

from golddiff_lab.cells import Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.likeness import (
    PICTURES,
    Here,
    column_here,
    likeness,
    packed,
    reference_of,
    row_title,
    unpacked,
)
from golddiff_lab.paper.likeness_tables import ALL, MAIN_COLUMNS, MNIST_COLUMNS
from golddiff_lab.paper.page import Page

SHOWN = 5
ORACLE = "oracle (network)"  # the label of the last row
COLUMNS = (*MNIST_COLUMNS, *MAIN_COLUMNS)


def run(context: Context) -> Page:
    """The page of the figure, from the cached results of the tables."""
    page = Page()
    available, missing = [], []
    for column in COLUMNS:
        here = column_here(context, column)
        if isinstance(here, str):
            missing.append(f"{column.title}: {here}")
        else:
            available.append(here)
    if available:
        parts = {
            row_title(context, here, row)
            for here in available
            for row in ALL
            if row_title(context, here, row) != row.title
        }
        page.lines.append(
            "One row per method, the same noise in every column; the last row is the oracle. The "
            "images are the first of those in the tables."
        )
        if parts:
            page.lines.append(f"Marked * in the picture: {', '.join(sorted(parts))}.")
        page.pictures["grid"] = _draw(context, available, bool(parts))
        page.rows += [
            {"column": here.column.title, "row": row_title(context, here, row), **_scores(result)}
            for here in available
            for row in ALL
            for result in (likeness(context, here, row),)
        ]
    if missing:
        page.lines += ["", *(f"- {line}" for line in missing)]
    return page


def _scores(result: Result) -> dict[str, float | None]:
    return {metric: result[metric]["mean"] for metric in ("mse", "r2")}


def _draw(context: Context, available: list[Here], part: bool) -> object:
    from golddiff.figures.methods import Block, draw_methods
    from golddiff.samplers import initial_noise

    shown = min(SHOWN, PICTURES, context.n)
    blocks = []
    for here in available:
        images, seconds = {}, {}
        for row in ALL:
            result = likeness(context, here, row)
            star = "*" if part and row.method == "kamb" else ""
            images[row.title + star] = unpacked(result["pictures"])[:shown]
            seconds[row.title + star] = result["seconds"]["processor_per_image_and_step"]
        reference = reference_of(context, here)
        # Packed and unpacked to round them like the other rows.
        images[ORACLE] = unpacked(packed(reference.images[:shown]))
        seconds[ORACLE] = reference.processor_seconds / (here.settings.n * here.settings.steps)
        noise = initial_noise(shown, here.store.shape, context.seed)
        blocks.append(Block(here.column.title, here.column.title, noise, images, seconds))
    steps = available[0].settings.steps
    note = f" *Kamb over at most {context.kamb_images:,} random images." if part else ""
    caption = f"{steps} DDIM steps, seed {context.seed}; CPU time of an image and step.{note}"
    return draw_methods(blocks, caption)
