"""Figures 2 and 5: predictions at each step of PCA (averaged and exact weights) and GoldDiff."""

from __future__ import annotations

from collections.abc import Sequence

from golddiff.estimators.registry import create
from golddiff.figures import trajectory
from golddiff.sampling import sample
from golddiff.store.images import ImageStore
from golddiff_lab.cells import Key, Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DATA_SETS
from golddiff_lab.paper.likeness import Row, packed, unpacked
from golddiff_lab.paper.likeness_tables import GOLDDIFF, PCA, PCA_UNBIASED
from golddiff_lab.paper.page import Page

ROWS = (PCA, PCA_UNBIASED, GOLDDIFF)
STEPS = 10
UNCONDITIONAL = ("celeba-hq", "afhq", "cifar10", "mnist", "fashion-mnist")
CONDITIONAL = ("imagenet", "imagenet64-100")
TENCH = 0  # ImageNet's first class

SMOOTHING_NOTE = (
    "One image from the same noise, with the x0 predicted at each step. The paper's point: PCA "
    "with batch-averaged weights stays smooth to the end."
)
CLASS_NOTE = (
    "The same for class 0 alone (tench in ImageNet): the paper shows that exact weights over the "
    "whole class paste patches of single images together."
)


def run_smoothing(context: Context) -> Page:
    """Figure 2, on the first available data set."""
    return _page(context, "smoothing", UNCONDITIONAL, None, SMOOTHING_NOTE)


def run_tench(context: Context) -> Page:
    """Figure 5, on class 0 of ImageNet or of its substitute."""
    return _page(context, "tench", CONDITIONAL, TENCH, CLASS_NOTE)


def _page(
    context: Context, figure: str, names: Sequence[str], label: int | None, note: str
) -> Page:
    available = context.first(names)
    if available is None:
        return Page([f"No data here: `--data NAME=PATH` with one of {', '.join(names)}."])
    name, store = available
    title = DATA_SETS[name].title
    if label is not None and label in store.classes and store.class_names:
        title += f", class {store.class_names[label]}"
    if label is not None and not store.class_counts.get(label):
        return Page([f"{title}: no images of class {label} here."])
    results = [_predictions(context, name, store, row, label) for row in ROWS]
    sigmas = results[0]["sigmas"]
    rows = [
        (row.title, unpacked(result["pictures"])) for row, result in zip(ROWS, results, strict=True)
    ]
    about = (
        f"{title}: {len(store.rows_of(label)):,} images (checksum "
        f"{store.manifest.images_checksum[:12]}), {len(sigmas)} DDIM steps, seed {context.seed}."
    )
    picture = trajectory.draw_trajectory(rows, sigmas, title=title)
    return Page([note, "", about], [{"sigmas": sigmas}], pictures={figure: picture})


def _predictions(
    context: Context, name: str, store: ImageStore, row: Row, label: int | None
) -> Result:
    settings = row.settings(DATA_SETS[name])
    steps = context.steps(STEPS)
    key: Key = {
        "kind": "steps", "store": store.manifest.images_checksum, "method": row.method,
        "settings": settings.given(), "steps": steps, "seed": context.seed, "label": label,
    }  # fmt: skip

    def compute() -> Result:
        denoiser = create(row.method, store, settings, context.seed)
        with context.watch(f"{DATA_SETS[name].title}: {row.title}", steps) as on_step:
            run = sample(denoiser, 1, steps, seed=context.seed, labels=label, on_step=on_step)
        assert run.trajectory is not None
        return {"sigmas": run.sigmas, "pictures": packed(run.trajectory[:, 0])}

    return context.cells.get(key, compute)
