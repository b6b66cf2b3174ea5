"""Figure 3: posterior weights over time, and the PCA denoiser over random subsets."""

from __future__ import annotations

from typing import Any

import numpy as np

from golddiff.denoiser import Estimator
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.optimal import Optimal
from golddiff.estimators.pca import PCA
from golddiff.evaluation.runs import Run, RunSettings
from golddiff.evaluation.runs import run as run_sampler
from golddiff.figures.curves import Panel, Series
from golddiff.figures.trajectory import draw_trajectory
from golddiff.kernels.contributions import Weights
from golddiff.metrics import mse_per_image
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.store.images import ImageStore
from golddiff.support import Prior, Support
from golddiff.system.markdown import markdown_table
from golddiff.system.numbers import F32, check_count
from golddiff_lab.cells import Key, Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DATA_SETS
from golddiff_lab.paper.likeness import packed, unpacked
from golddiff_lab.paper.page import Page

IMAGES = 8
STEPS = 10
SIZES = (10, 30, 100, 300, 1000, 3000, 5000)
DRAWN = (10, 100, 1000, 5000)  # sizes shown in the pictures, as in the paper
TOP = 10
# One pixel's weights take about as long as a step, so they are computed for few pixels and images.
PIXELS = 3  # a grid of 3 x 3 pixels
LOOKED_AT = 4  # number of images
ORDER = ("cifar10", "mnist", "fashion-mnist", "celeba-hq", "afhq", "imagenet64-100")

NOTE = (
    "The paper shows this figure for PCA on CIFAR-10, without numbers. States come from the "
    "full-scan PCA denoiser's own run (exact weights). Predictions are compared in [0, 1]."
)


class RandomSubset:
    """A schedule of one fixed random subset, which the paper's Figure 3 compares with full scans.

    For :class:`golddiff.estimators.golden.GoldDiff`. With the same seed, larger subsets contain
    smaller ones; a class smaller than ``size`` is used entirely.
    """

    def __init__(self, size: int) -> None:
        check_count("size", size)
        self.size = size

    def budgets(self, sigma: float, n: int) -> tuple[int, int]:
        """(m, k), both the subset's size at every noise level."""
        size = min(self.size, n)
        return size, size

    def supports(
        self, store: ImageStore, x: F32, sigma: float, label: Prior, seed: int
    ) -> list[Support]:
        """The same support for all queries."""
        rows = store.rows_of(label)
        drawn = np.random.default_rng(seed).permutation(rows)[: self.size]
        return [Support(np.sort(drawn))] * len(x)


def run(context: Context) -> Page:
    """The page, on CIFAR-10, or else the first available data set or the built-in digits."""
    available = context.first(ORDER)
    if available is None:
        name, title, threshold = "digits", "digits (8 x 8)", 0.02
        store = cached_store("digits", SourceOptions(), say=context.say)
    else:
        name, store = available
        title, threshold = DATA_SETS[name].title, DATA_SETS[name].golden_threshold
    sizes = [size for size in SIZES if size < store.n]
    if context.quick:
        sizes = sizes[:2]
    images = min(IMAGES, context.n)
    steps = context.steps(STEPS)
    settings = RunSettings(images, steps, seed=context.seed, batch=images)
    key: Key = {
        "kind": "weights", "data": name, "store": store.manifest.images_checksum,
        "threshold": threshold,
        "n": images, "steps": steps, "seed": context.seed, "sizes": sizes,
        "pixels": PIXELS, "looked_at": LOOKED_AT,
    }  # fmt: skip

    def compute() -> Result:
        pca = PCA(store, threshold)
        total = images * steps
        with context.watch(f"weights: {title}, full scan", total) as on_step:
            full = run_sampler(pca, store, settings, on_step)
        total = 2 * min(images, LOOKED_AT) * steps
        with context.watch(f"weights: {title}, weights", total) as on_step:
            spread = [_spread(e, full, on_step) for e in (Optimal(store), pca)]
        subsets = _subsets(context, pca, full, settings, sizes, title)
        return {
            "n": store.n, "images": images, "sigmas": full.sigmas,
            "whole": spread[0], "pixel": spread[1], **subsets,
        }  # fmt: skip

    result = context.cells.get(key, compute)
    return _page(title, store, threshold, result)


def _spread(estimator: Estimator, full: Run, on_step: Any) -> dict[str, list[float]]:
    """Means over states of effective number, largest weight and top ten's weight, by step."""
    store = estimator.store
    support = Support(store.rows_of(None))
    pixels: list[int | None] = [None]
    if isinstance(estimator, PCA):
        _, height, width = store.shape
        ys, xs = (
            np.linspace(0, side - 1, PIXELS + 2).round().astype(int)[1:-1]
            for side in (height, width)
        )
        pixels = [int(y * width + x) for y in ys for x in xs]
    means: dict[str, list[float]] = {"effective": [], "top1": [], "top10": []}
    for states, sigma in zip(full.states, full.sigmas, strict=True):
        values = []
        for x in states[:LOOKED_AT].flatten(1).numpy():
            for pixel in pixels:
                weights = Weights(estimator, support, x, sigma, TOP, pixel)
                ranked = weights.ranked().scores
                values.append(
                    (weights.effective.mean(), ranked[:, 0].mean(), ranked.sum(axis=1).mean())
                )
            on_step(1)
        for name, value in zip(means, np.mean(values, axis=0), strict=True):
            means[name].append(float(value))
    return means


def _subsets(
    context: Context, pca: PCA, full: Run, settings: RunSettings, sizes: list[int], title: str
) -> dict[str, Any]:
    """Random subsets compared with the full scan: single steps, whole runs, and pictures."""
    single, final, pictures = [], [], {}
    with context.watch(
        f"weights: {title}, subsets", len(sizes) * settings.n * settings.steps
    ) as on_step:
        for size in sizes:
            denoiser = GoldDiff(pca, RandomSubset(size), context.seed)
            subset_run = run_sampler(denoiser, pca.store, settings, on_step)
            final.append(float(mse_per_image(subset_run.images, full.images).mean()))
            single.append(
                [
                    float(mse_per_image(denoiser(x, sigma), x0).mean())
                    for x, sigma, x0 in zip(full.states, full.sigmas, full.predictions, strict=True)
                ]
            )
            if size in DRAWN:
                pictures[f"{size:,} images"] = packed(subset_run.predictions[:, 0])
    pictures[f"all {pca.store.n:,}"] = packed(full.predictions[:, 0])
    return {"sizes": sizes, "single": single, "final": final, "pictures": pictures}


def _page(title: str, store: ImageStore, threshold: float, result: Result) -> Page:
    whole, pixel, sigmas = result["whole"], result["pixel"], result["sigmas"]
    about = (
        f"{title}: {result['n']:,} images (checksum {store.manifest.images_checksum[:12]}), "
        f"{result['images']} samples, mask threshold {threshold:g}; weights of at most "
        f"{LOOKED_AT} of them, PCA's at {PIXELS} x {PIXELS} pixels."
    )
    header = [
        "σ", "effective images", "largest weight", "PCA, a pixel: effective", "largest weight",
        *(f"MSE, {size:,} random" for size in result["sizes"]),
    ]  # fmt: skip
    texts = [
        [
            f"{sigma:.3g}", f"{whole['effective'][i]:,.1f}", f"{whole['top1'][i]:.3g}",
            f"{pixel['effective'][i]:,.1f}", f"{pixel['top1'][i]:.3g}",
            *(f"{errors[i]:.2g}" for errors in result["single"]),
        ]
        for i, sigma in enumerate(sigmas)
    ]  # fmt: skip
    last = ["final images", *["–"] * 4, *(f"{value:.2g}" for value in result["final"])]
    lines = [NOTE, "", about, "", *markdown_table(header, [*texts, last])]
    rows = [{k: v for k, v in result.items() if k != "pictures"}]
    page = Page(lines, rows, _panels(title, result))
    page.pictures["weights-pictures"] = draw_trajectory(
        [(label, unpacked(text)) for label, text in result["pictures"].items()], sigmas,
        title=f"PCA on {title}, from random subsets: the x0 predicted at each step",
    )  # fmt: skip
    return page


def _panels(title: str, result: Result) -> list[Panel]:
    sigmas, sizes = result["sigmas"], result["sizes"]
    noise = "noise level σ"
    kinds = (("whole image (Optimal)", result["whole"]), ("one pixel (PCA)", result["pixel"]))
    effective = [Series(name, sigmas, spread["effective"]) for name, spread in kinds]
    top = [Series(name, sigmas, spread["top1"]) for name, spread in kinds]
    top += [
        Series(f"{name}, top ten", sigmas, spread["top10"], dashed=True, like=name)
        for name, spread in kinds
    ]
    shown = sorted({0, len(sigmas) // 4, len(sigmas) // 2, 3 * len(sigmas) // 4, len(sigmas) - 1})
    single = [
        Series(f"σ = {sigmas[i]:.2g}", sizes, [errors[i] for errors in result["single"]])
        for i in shown
    ]
    single.append(Series("final images", sizes, result["final"], dashed=True))
    return [
        Panel(f"{title}: effective images", noise, "images", effective, "log", "log", falling=True),
        Panel(f"{title}: heaviest images", noise, "share of the weight", top, "log", falling=True),
        Panel(f"{title}: subset against full scan", "random images", "MSE", single, "log", "log"),
    ]
