"""Table 1: fitted exponents of time against number of images, image size and patch size."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch

from golddiff.denoiser import Denoiser
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.kamb import Kamb
from golddiff.estimators.optimal import Optimal
from golddiff.estimators.pca import PCA, mask_width
from golddiff.estimators.wiener import Wiener
from golddiff.figures.curves import Panel, Series
from golddiff.store.images import ImageStore
from golddiff.supports.paper import PaperSchedule
from golddiff.system.markdown import markdown_table
from golddiff_lab.cells import Key, Result
from golddiff_lab.fit import exponent
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.paper import paper_value
from golddiff_lab.timing import in_turns, timed

LABEL = "tab:complexity_results"
METHODS = ("Optimal", "Wiener", "Kamb", "PCA", "GoldDiff")

SIGMA = 0.5
REPEATS = 5
ENOUGH = 2.0  # time limit for repeats, in seconds
BASE_N, BASE_SIDE, BASE_PATCH, BASE_THRESHOLD = 8000, 16, 5, 0.1

IMAGES = (4000, 8000, 16000, 32000, 64000)
SIDES = (12, 16, 24, 32, 40)
PATCHES = (3, 5, 7, 9, 11, 13)
THRESHOLDS = (0.5, 0.2, 0.1, 0.03, 0.01, 0.001)

NOTE = (
    "CPU seconds of all threads, which exclude other programs, for one query: the median of up to "
    "five, after a warm-up that computes masks and compiles kernels. Images are smoothed noise "
    "with 3 channels, sigma is 0.5, and GoldDiff over PCA uses the schedule of the paper's text. "
    "Exponents are slopes of log time against log size, with equal weight for all sizes. Constant "
    "costs still matter at small sizes and can lower an exponent below the expected one."
)
EXPECTED = {
    # Exponents of N, D and p_t in the paper's table; None if it has none
    "Optimal": (1, 1, None),
    "Wiener": (0, 2, None),
    "Kamb": (1, 2, 1),
    "PCA": (1, 1, 1),
    # With m_t and d fixed fractions of N and D.
    "GoldDiff": (1, 1, 1),
}


@dataclass(frozen=True)
class Point:
    """One measurement: a method, and the size and settings of its problem."""

    method: str
    n: int = BASE_N
    side: int = BASE_SIDE
    patch: int = BASE_PATCH
    threshold: float = BASE_THRESHOLD


@contextmanager
def synthetic(seed: int) -> Iterator[Callable[[int, int], ImageStore]]:
    """A function that builds stores of n images of smoothed noise, 3 x side x side, on demand."""
    with tempfile.TemporaryDirectory(prefix="golddiff-") as folder:

        @cache
        def build(n: int, side: int) -> ImageStore:
            generator = torch.Generator().manual_seed(seed)
            noise = torch.randn(n, 3, side, side, generator=generator)
            smooth = torch.nn.functional.avg_pool2d(
                torch.nn.functional.pad(noise, (1, 1, 1, 1), mode="circular"), 3, 1
            )
            pixels = ((smooth * 1.2).clamp(-1, 1) * 127.5 + 127.5).round().to(torch.uint8)
            return ImageStore.build(pixels, Path(folder) / f"{n}-{side}")

        yield build


def run(context: Context) -> Page:
    """The page of the table."""
    quick = context.quick
    images = (60, 120) if quick else IMAGES
    sides = (6, 8) if quick else SIDES
    patches, thresholds = (PATCHES[:2], THRESHOLDS[:2]) if quick else (PATCHES, THRESHOLDS)
    base = (60, 6) if quick else (BASE_N, BASE_SIDE)
    plans = {
        "N": [Point(m, n, base[1]) for m in METHODS for n in images],
        "D": [Point(m, base[0], side) for m in METHODS for side in sides],
        "p_t": [
            *(Point("Kamb", *base, patch=p) for p in patches),
            *(Point(m, *base, threshold=t) for m in ("PCA", "GoldDiff") for t in thresholds),
        ],
    }
    measured: dict[str, dict[str, list[Result]]] = {}
    total = sum(map(len, plans.values()))
    with synthetic(context.seed) as build, context.watch("complexity", total) as on_step:
        for variable, points in plans.items():
            for point in points:
                result = _cell(context, build, point)
                measured.setdefault(variable, {}).setdefault(point.method, []).append(result)
                on_step(1)
    return _page(measured)


def _cell(context: Context, build: Callable[[int, int], ImageStore], point: Point) -> Result:
    key: Key = {
        "kind": "complexity", "clock": "processor, median", **vars(point), "sigma": SIGMA,
        "seed": context.seed, "threads": torch.get_num_threads(),
    }  # fmt: skip

    def compute() -> Result:
        store = build(point.n, point.side)
        width = 3 * point.patch**2
        if point.method in ("PCA", "GoldDiff"):
            width = round(mask_width(store, SIGMA, point.threshold))
        return {
            "N": point.n,
            "D": store.d,
            "p_t": width,
            "seconds": _seconds(_denoiser(point, store), store, context.seed),
        }

    return context.cells.get(key, compute)


def _denoiser(point: Point, store: ImageStore) -> Denoiser:
    if point.method == "Optimal":
        return Optimal(store)
    if point.method == "Wiener":
        return Wiener(store)
    if point.method == "Kamb":
        return Kamb(store, point.patch)
    pca = PCA(store, point.threshold)
    return pca if point.method == "PCA" else GoldDiff(pca, PaperSchedule())


def _seconds(denoiser: Denoiser, store: ImageStore, seed: int) -> float:
    generator = torch.Generator().manual_seed(seed)
    x = store.images([0]) + SIGMA * torch.randn((1, *store.shape), generator=generator)
    step = partial(timed, partial(denoiser, x, SIGMA))
    return in_turns({"": step}, REPEATS, ENOUGH)[""].processor


def _page(measured: dict[str, dict[str, list[Result]]]) -> Page:
    variables = tuple(measured)
    fitted = {
        (method, v): exponent([r[v] for r in results], [r["seconds"] for r in results])
        for v in variables
        for method, results in measured[v].items()
    }
    texts = [
        [
            method,
            f"`{paper_value(LABEL, 'Complexity', method, 'Complexity')}`",
            *(
                _exponent(EXPECTED[method][i], fitted.get((method, v)))
                for i, v in enumerate(variables)
            ),
        ]
        for method in METHODS
    ]
    header = ["Method", "the paper's complexity", *(f"exponent of {v}" for v in variables)]
    legend = "Each exponent: expected → measured. p_t counts the values in a patch or mask."
    titles = {"N": "images N", "D": "values an image, D", "p_t": "values in a patch or mask, p_t"}
    panels = []
    for v in variables:
        lines = [
            Series(method, [r[v] for r in results], [r["seconds"] for r in results])
            for method, results in measured[v].items()
        ]
        title = f"time against {v}"
        panels.append(Panel(title, titles[v], "processor seconds", lines, "log", "log"))
    rows = [
        {"method": method, "variable": v, "exponent": fitted[method, v], "points": results}
        for v in variables
        for method, results in measured[v].items()
    ]
    return Page([NOTE, "", *markdown_table(header, texts), "", legend], rows, panels)


def _exponent(expected: int | None, measured: float | None) -> str:
    if measured is None:
        return "–"
    return f"{'–' if expected is None else expected} → {measured:.2f}"
