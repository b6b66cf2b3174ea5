"""The download of a run: a PNG that shows every step, with the run's settings in its text."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from tempfile import mkdtemp

import torch
from PIL import Image

from golddiff import __version__
from golddiff.estimators.registry import SHOWN
from golddiff.figures.trajectory import Row, draw_trajectory
from golddiff.studio.grid import draw_grid
from golddiff.studio.run import Run, Selection
from golddiff.system.pictures import rendered, save


def write_download(run: Run, selected: Selection, folder: Path) -> Path:
    """Write the PNG of a run into a new folder inside ``folder``."""
    path = Path(mkdtemp(dir=folder)) / "golddiff-run.png"
    texts = {
        "golddiff": __version__,
        "training images": run.opened.store.manifest.source,
        "settings": json.dumps(asdict(run.settings)),
    }
    save("picture", draw_run(run, selected), path, texts)
    return path


def draw_run(run: Run, selected: Selection) -> Image.Image:
    """The grid of results, above each method's predictions of the first image at every step."""
    count = run.steps_done
    grid = draw_grid(run, count - 1, False, selected)
    rows = [
        Row(SHOWN[method].title, torch.stack([state.x0[0] for state in states[:count]]))
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
