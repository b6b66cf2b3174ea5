"""Downloads of a run: a PNG that shows every step, and its settings and results as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from PIL import Image

from golddiff import __version__
from golddiff.attribution import PixelSources
from golddiff.estimators.describe import describe
from golddiff.estimators.registry import SHOWN
from golddiff.figures.trajectory import draw_trajectory
from golddiff.studio.grid import draw_grid
from golddiff.studio.run import Curves, Run, Selection
from golddiff.system.pictures import rendered


def write_downloads(
    run: Run, step: int, selected: Selection, sources: PixelSources | None, curves: Curves,
    folder: Path,
) -> tuple[Path, Path]:  # fmt: skip
    """Write the PNG and the JSON of a run into a new folder inside ``folder``."""
    target = Path(mkdtemp(dir=folder))
    picture, figures = target / "golddiff-run.png", target / "golddiff-run.json"
    draw_run(run, selected).save(picture)
    record = describe_run(run, step, selected, sources, curves)
    figures.write_text(json.dumps(record, indent=1, allow_nan=False) + "\n", "utf-8")
    return picture, figures


def draw_run(run: Run, selected: Selection) -> Image.Image:
    """The grid of results, above each method's predictions of the first image at every step."""
    count = run.steps_done
    grid = draw_grid(run, count - 1, False, selected)
    rows = [
        (SHOWN[method].title, torch.stack([state.x0[0] for state in states[:count]]))
        for method, states in run.states.items()
    ]
    budgets, title = run.budgets(selected.method), "first image"
    sizes = [f"{k:,}" for _, k in budgets] if budgets else None
    if budgets:
        title += f", with the golden subset of {SHOWN[selected.method].title}"
    steps = rendered(draw_trajectory(rows, run.sigmas[:count], sizes, title))
    picture = Image.new("RGB", (max(grid.width, steps.width), grid.height + steps.height), "white")
    picture.paste(grid, (0, 0))
    picture.paste(steps, (0, grid.height))
    return picture


def describe_run(
    run: Run, step: int, selected: Selection, sources: PixelSources | None, curves: Curves
) -> dict[str, Any]:
    """The settings and results of a run for JSON; of a start image only the noise."""
    s, store = run.settings, run.opened.store
    return {
        "golddiff": __version__,
        "store": {
            "name": s.store, "source": store.manifest.source, "n": store.n,
            "shape": list(store.shape),
        },
        "methods": list(s.methods),
        **{name: getattr(s, name)
           for name in ("novelty", "sampler", "steps", "seed", "n", "label")},
        "steps_done": run.steps_done,
        "start_sigma": s.start,
        "sigmas": run.sigmas,
        "golden_subsets": {
            method: {
                **describe(denoiser)["schedule"],
                "m": [m for m, _ in budgets], "k": [k for _, k in budgets],
            }
            for method, denoiser in run.denoisers.items() if (budgets := run.budgets(method))
        },
        "seconds_per_step": run.seconds,
        "pixel": {
            **asdict(selected), "step": step, "sigma": run.sigmas[step],
            "effective_images": {
                method: [{"sigma": sigma, "images": number} for sigma, number in points]
                for method, points in curves.items()
            },
            "sources": sources and [
                {"image": int(row), "weight": float(weight), "y": int(position) // store.shape[2],
                 "x": int(position) % store.shape[2]}
                for row, weight, position in zip(
                    sources.sources, sources.source_weights, sources.positions, strict=True
                )
            ],
        },
    }  # fmt: skip
