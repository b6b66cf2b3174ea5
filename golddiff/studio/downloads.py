"""A run as files to keep: one picture of every step, and its settings and figures as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from golddiff import __version__
from golddiff.attribution import PixelSources
from golddiff.registry import SHOWN
from golddiff.studio.grid import GAP, INK, SMALL, TEXT, draw_grid, font, level, thumbnail
from golddiff.studio.run import Curves, Run, Selection

COLUMNS = 11
ROW = 148


def write_downloads(
    run: Run, step: int, selected: Selection | None, found: PixelSources | None, made: Curves,
    folder: Path,
) -> tuple[Path, Path]:  # fmt: skip
    """Write the PNG and the JSON of a run into a folder of its own inside ``folder``."""
    target = folder / run.key
    target.mkdir(exist_ok=True)
    picture, figures = target / "golddiff-run.png", target / "golddiff-run.json"
    draw_run(run, selected).save(picture)
    described = describe_run(run, step, selected, found, made)
    figures.write_text(json.dumps(described, indent=1, allow_nan=False) + "\n", "utf-8")
    return picture, figures


def draw_run(run: Run, selected: Selection | None) -> Image.Image:
    """The methods' results, and under them what each predicted of the first image by step."""
    count = run.steps_done
    grid = draw_grid(run, count - 1, False, selected)
    shown = (
        sorted({round(i * (count - 1) / (COLUMNS - 1)) for i in range(COLUMNS)}) if count else []
    )
    left, top = 256, grid.height + 88
    width = max(grid.width, left + len(shown) * (ROW + GAP))
    picture = Image.new("RGB", (width, top + len(run.frames) * (ROW + GAP)), "white")
    picture.paste(grid, (0, 0))
    draw = ImageDraw.Draw(picture)
    draw.text((GAP, grid.height + 16), "first image, by noise level", INK, font(TEXT))
    for column, s in enumerate(shown):
        x = left + column * (ROW + GAP)
        draw.text((x, top - 30), f"σ {level(run.sigmas[s])}", INK, font(SMALL))
    for row, (method, frames) in enumerate(run.frames.items()):
        y = top + row * (ROW + GAP)
        draw.text((GAP, y + ROW // 2 - 14), SHOWN[method].title, INK, font(TEXT))
        for column, s in enumerate(shown):
            cell = _cell(frames[s].x0[:1])
            picture.paste(cell, (left + column * (ROW + GAP), y))
    return picture


def describe_run(
    run: Run, step: int, selected: Selection | None, found: PixelSources | None, made: Curves
) -> dict[str, Any]:
    """Everything about a run that fits in JSON; enough to do it again."""
    s, store = run.settings, run.opened.store
    budgets = run.budgets()
    return {
        "golddiff": __version__,
        "store": {
            "name": s.store, "source": store.manifest.source, "n": store.n,
            "shape": list(store.shape),
        },
        "methods": list(s.methods),
        "schedule": s.variant,
        "sampler": s.sampler,
        "steps": s.steps,
        "steps_done": run.steps_done,
        "seed": s.seed,
        "n": s.n,
        "label": s.label,
        "start_sigma": s.start,
        "sigmas": run.sigmas,
        "golden_subsets": budgets and {"m": [m for m, _ in budgets], "k": [k for _, k in budgets]},
        "seconds_per_step": run.seconds,
        "pixel": selected and {
            "method": selected.method, "image": selected.image, "y": selected.y, "x": selected.x,
            "step": step, "sigma": run.sigmas[step],
            "effective_images": {
                method: [{"sigma": sigma, "images": number} for sigma, number in points]
                for method, points in made.effective.items()
            },
            "sources": found and [
                {"image": int(row), "weight": float(weight), "y": int(at) // store.shape[2],
                 "x": int(at) % store.shape[2]}
                for row, weight, at in zip(
                    found.sources, found.source_weights, found.positions, strict=True
                )
            ],
        },
    }  # fmt: skip


def _cell(image: Any) -> Image.Image:
    factor = max(1, ROW // image.shape[3])
    picture = thumbnail(image, factor)[0]
    picture.thumbnail((ROW, ROW), Image.Resampling.BOX)
    return picture
