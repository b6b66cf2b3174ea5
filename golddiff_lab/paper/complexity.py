"""How time grows with the images, their size and the patches: fitted exponents by the table."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
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
from golddiff_lab.paper.cells import Key, Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.page import Page, table
from golddiff_lab.paper.paper import paper_value

LABEL = "tab:complexity_results"
METHODS = ("Optimal", "Wiener", "Kamb", "PCA", "GoldDiff")

SIGMA = 0.5
REPEATS = 5
ENOUGH = 2.0  # seconds of repeats
BASE_N, BASE_SIDE, BASE_PATCH, BASE_THRESHOLD = 2000, 16, 5, 0.1

IMAGES = (1000, 2000, 4000, 8000, 16000)
SIDES = (8, 12, 16, 24, 32)
PATCHES = (3, 5, 7, 9, 11, 13)
THRESHOLDS = (0.5, 0.2, 0.1, 0.03, 0.01, 0.001)

NOTE = (
    "Processor seconds (all threads together, so that other work on the machine does not count) "
    "for one query, best of up to five, after a first that makes masks and compiles; "
    "smoothed noise of 3 colours as images, sigma 0.5, GoldDiff over PCA by the paper's text. "
    "Exponents are slopes of log time against log size, all sizes counting the same; small sizes "
    "hold constant costs, so an exponent below the expected one says that these still show."
)
EXPECTED = {
    # method: exponents of N, D and p_t that the paper's table says; None: not in it.
    "Optimal": (1, 1, None),
    "Wiener": (0, 2, None),
    "Kamb": (1, 2, 1),
    "PCA": (1, 1, 1),
    # With m_t and d fixed fractions of N and D.
    "GoldDiff": (1, 1, 1),
}


@dataclass(frozen=True)
class Point:
    """One measurement: the method and what it runs on."""

    method: str
    n: int = BASE_N
    side: int = BASE_SIDE
    patch: int = BASE_PATCH
    threshold: float = BASE_THRESHOLD


class Stores:
    """Synthetic training sets, built when first asked for, gone at the end."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._made: dict[tuple[int, int], ImageStore] = {}

    @cached_property
    def folder(self) -> tempfile.TemporaryDirectory[str]:
        """Where they lie."""
        return tempfile.TemporaryDirectory(prefix="golddiff-")

    def get(self, n: int, side: int) -> ImageStore:
        """``n`` images of smoothed noise, 3 x side x side."""
        if (n, side) not in self._made:
            generator = torch.Generator().manual_seed(self.seed)
            noise = torch.randn(n, 3, side, side, generator=generator)
            smooth = torch.nn.functional.avg_pool2d(
                torch.nn.functional.pad(noise, (1, 1, 1, 1), mode="circular"), 3, 1
            )
            pixels = ((smooth * 1.2).clamp(-1, 1) * 127.5 + 127.5).round().to(torch.uint8)
            path = Path(self.folder.name) / f"{n}-{side}"
            self._made[n, side] = ImageStore.build(pixels, path)
        return self._made[n, side]


@contextmanager
def synthetic(seed: int) -> Iterator[Stores]:
    """The stores, and their removal."""
    stores = Stores(seed)
    try:
        yield stores
    finally:
        if "folder" in vars(stores):
            stores.folder.cleanup()


def run(context: Context) -> Page:
    """The page of the table."""
    small = context.quick
    images = (60, 120) if small else IMAGES
    sides = (6, 8) if small else SIDES
    patches, thresholds = (PATCHES[:2], THRESHOLDS[:2]) if small else (PATCHES, THRESHOLDS)
    base = (60, 6) if small else (BASE_N, BASE_SIDE)
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
    with synthetic(context.seed) as stores, context.watch("complexity", total) as on_step:
        for variable, points in plans.items():
            for point in points:
                result = _cell(context, stores, point)
                measured.setdefault(variable, {}).setdefault(point.method, []).append(result)
                on_step(1)
    return _page(measured)


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Slope of log seconds against log size, by least squares; NaN where the sizes are one."""
    x, y = np.log(sizes), np.log(seconds)
    x = x - x.mean()
    return float((x @ y) / (x @ x)) if x.any() else float("nan")


def _cell(context: Context, stores: Stores, point: Point) -> Result:
    key: Key = {
        "kind": "complexity", "clock": "processor", **vars(point), "sigma": SIGMA,
        "seed": context.seed, "threads": torch.get_num_threads(),
    }  # fmt: skip

    def compute() -> Result:
        store = stores.get(point.n, point.side)
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
    denoiser(x, SIGMA)
    times: list[float] = []
    while len(times) < REPEATS and sum(times) < ENOUGH:
        start = time.process_time()
        denoiser(x, SIGMA)
        times.append(time.process_time() - start)
    return min(times)


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
    page = Page([NOTE, "", *table(header, texts)])
    page.lines += [
        "",
        "Each exponent: expected → measured. p_t counts the values in a patch or mask.",
    ]
    titles = {"N": "images N", "D": "values an image, D", "p_t": "values in a patch or mask, p_t"}
    for v in variables:
        lines = [
            Series(method, [r[v] for r in results], [r["seconds"] for r in results])
            for method, results in measured[v].items()
        ]
        page.panels.append(
            Panel(f"time against {v}", titles[v], "processor seconds", lines, "log", "log")
        )
        for method, results in measured[v].items():
            slope = fitted[method, v]
            page.rows.append(
                {
                    "method": method,
                    "variable": v,
                    "exponent": None if np.isnan(slope) else slope,
                    "points": results,
                }
            )
    return page


def _exponent(expected: int | None, measured: float | None) -> str:
    if measured is None:
        return "–"
    return f"{'–' if expected is None else expected} → {measured:.2f}"
