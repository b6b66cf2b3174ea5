"""What ``golddiff evaluate`` writes: figures as JSON, curves, and images side by side."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff import __version__
from golddiff.cli.summary import describe, summary
from golddiff.cli.terminal import say, write_json
from golddiff.estimators.registry import METHODS, MethodSettings

if TYPE_CHECKING:
    from golddiff.evaluation.compare import Evaluation
    from golddiff.evaluation.references import Oracle
    from golddiff.evaluation.runs import Run
    from golddiff.figures.curves import Panel
    from golddiff.store.images import ImageStore

SHOWN = 8


def difference(first: Evaluation, second: Evaluation) -> dict[str, Any]:
    """Intervals of the mean MSE and r2 of one less the other's, image by image."""
    from golddiff.evaluation.bootstrap import bootstrap

    return {
        "mse": bootstrap(first.mse_per_image - second.mse_per_image),
        "r2": bootstrap(first.r2_per_image - second.r2_per_image),
    }


def figures(
    store: ImageStore,
    oracle: Oracle,
    made: dict[str, Evaluation],
    settings: dict[str, MethodSettings],
) -> dict[str, Any]:
    """Everything but the images, for --json."""
    return {
        "golddiff": __version__,
        "kind": "evaluation",
        "store": {
            "description": describe(store),
            "checksum": store.manifest.images_checksum,
            **summary(store),
        },
        "oracle": {"path": str(oracle.path), "checksum": oracle.checksum},
        "methods": {
            name: {"settings": settings[name].given(), **evaluation.figures()}
            for name, evaluation in made.items()
        },
        "differences": [
            {"of": a, "less": b, **{k: v.figures() for k, v in difference(x, y).items()}}
            for (a, x), (b, y) in combinations(made.items(), 2)
        ],
        "panels": [panel.figures() for panel in panels(made)],
    }  # fmt: skip


def panels(made: dict[str, Evaluation]) -> list[Panel]:
    """MSE and r2 at each step, of both kinds of comparison."""
    from golddiff.figures.curves import Panel, Series

    titles = {"own": "both sides at their own states", "single": "one step, at the oracle's states"}
    drawn = []
    for which, title in titles.items():
        curves = {
            name: e.figures()["per_step"][which]
            for name, e in made.items()
            if getattr(e, which) is not None
        }
        for metric, text in (("mse", "MSE"), ("r2", "r2")):
            lines = [
                Series(name, made[name].sigmas, curve[metric]) for name, curve in curves.items()
            ]
            if lines:
                drawn.append(
                    Panel(
                        title, "noise level σ", f"{text} of the predicted x0", lines, "log",
                        "log" if metric == "mse" else "linear", falling=True,
                        floor=None if metric == "mse" else -1.0,
                    )
                )  # fmt: skip
    return drawn


def write_folder(
    out: Path,
    store: ImageStore,
    reference: Run,
    made: dict[str, Evaluation],
    results: dict[str, Any],
) -> None:
    """Write ``evaluation.json``, ``curves.png`` and, of images, ``images.png``."""
    from golddiff.figures.curves import draw_panels
    from golddiff.system.pictures import save

    write_json(out / "evaluation.json", results)
    curves = panels(made)
    if curves:
        save("out", draw_panels(curves), out / "curves.png")
    if len(store.shape) == 3:
        save("out", _pictures(reference, made, results), out / "images.png")
    say(f"{out}: evaluation.json" + (", curves.png" if curves else "") + ", images.png")


def _pictures(reference: Run, made: dict[str, Evaluation], results: dict[str, Any]) -> Any:
    from golddiff.figures.methods import Block, Made, draw_methods
    from golddiff.sampling import initial_noise

    settings = next(iter(made.values())).settings
    shown = min(SHOWN, settings.n)
    rows = {METHODS[name].title: Made(e.images[:shown], e.seconds) for name, e in made.items()}
    seconds = reference.seconds / (settings.n * settings.steps)
    rows["oracle"] = Made(reference.images[:shown], seconds)
    noise = initial_noise(shown, tuple(reference.images.shape[1:]), settings.seed)
    name = Path(results["store"]["path"]).name
    return draw_methods([Block("", f"{name}, {settings.steps} steps", noise, rows)])
