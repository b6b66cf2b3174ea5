"""How much the largest candidate set m_max and the smallest golden subset k_min matter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial

from golddiff.estimators.registry import MethodSettings
from golddiff.figures.curves import Panel, Series
from golddiff_lab.paper.cells import Result
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DataSet
from golddiff_lab.paper.likeness import Column, Here, Row, column_here, likeness
from golddiff_lab.paper.methods import PCA, golden_settings
from golddiff_lab.paper.page import Page, table
from golddiff_lab.paper.tables import about, seconds_text

COLUMNS = tuple(
    Column(title, data, title)
    for data, title in (
        ("mnist", "MNIST"),
        ("cifar10", "CIFAR-10"),
        ("celeba-hq", "CelebA-HQ"),
        ("afhq", "AFHQ"),
    )
)
M_MAX = tuple(Fraction(1, i) for i in (5, 4, 3, 2, 1))
K_MIN = tuple(Fraction(1, i) for i in (40, 30, 20, 10, 4))

M_NOTE = (
    "m_max as a fraction of the N training images; the paper's default is 1/4. Run with the "
    "schedule of the paper's text: the released code draws its candidates at random and has no "
    "m_max. The dashed line is the PCA baseline. The paper shows a figure without numbers."
)
K_NOTE = (
    "k_min as a fraction of the N training images; the paper's default is 1/20. Run with the "
    "released code's schedule. The dashed line is the PCA baseline. The paper shows a figure "
    "without numbers."
)


def _m_max(value: Fraction, data: DataSet) -> MethodSettings:
    return replace(golden_settings(data), variant="text", m_max=float(value))


def _k_min(value: Fraction, data: DataSet) -> MethodSettings:
    return replace(golden_settings(data), k_min=float(value))


def run_m_max(context: Context) -> Page:
    """The page of m_max."""
    return _page(context, "m_max", M_MAX, _m_max, M_NOTE)


def run_k_min(context: Context) -> Page:
    """The page of k_min."""
    return _page(context, "k_min", K_MIN, _k_min, K_NOTE)


def _page(
    context: Context,
    name: str,
    values: tuple[Fraction, ...],
    settings: Callable[[Fraction, DataSet], MethodSettings],
    note: str,
) -> Page:
    if context.quick:
        values = (values[0], values[-1])
    page = Page([note])
    lines: dict[str, list[Series]] = {"mse": [], "r2": []}
    for column in COLUMNS:
        here = column_here(context, column)
        page.lines += ["", f"### {column.title}", ""]
        if isinstance(here, str):
            page.lines.append(f"{here[0].upper()}{here[1:]}.")
            continue
        made = _points(context, here, name, values, settings)
        page.lines += [about(here, made[0]), "", *_table(name, values, made)]
        page.rows += [
            {"column": column.title, "row": text, **{k: v for k, v in r.items() if k != "pictures"}}
            for text, r in zip([*map(str, values), PCA.title], made, strict=True)
        ]
        for metric, series in lines.items():
            series += _series(column.title, values, made, metric)
    if lines["mse"]:
        page.panels = [
            Panel(title, f"{name} / N", title, lines[metric], xscale="log")
            for metric, title in (("mse", "MSE"), ("r2", "r2"))
        ]
    return page


def _points(
    context: Context,
    here: Here,
    name: str,
    values: tuple[Fraction, ...],
    settings: Callable[[Fraction, DataSet], MethodSettings],
) -> list[Result]:
    rows = [Row(f"{name} = {v}", "golddiff-pca", partial(settings, v)) for v in values]
    return [likeness(context, here, row) for row in [*rows, PCA]]


def _table(name: str, values: tuple[Fraction, ...], made: list[Result]) -> list[str]:
    texts = [
        [
            text,
            *(
                f"{r[m]['mean']:.{d}f} ({r[m]['low']:.{d}f} to {r[m]['high']:.{d}f})"
                if r[m]["mean"] is not None
                else "undefined"
                for m, d in (("mse", 4), ("r2", 3))
            ),
            seconds_text(r),
        ]
        for text, r in zip([*map(str, values), "PCA, full scan"], made, strict=True)
    ]
    return table([f"{name} / N", "MSE", "r2", "s a step"], texts)


def _series(
    title: str, values: tuple[Fraction, ...], made: list[Result], metric: str
) -> list[Series]:
    x = [float(v) for v in values]
    points, baseline = [r[metric] for r in made[:-1]], made[-1][metric]["mean"]
    mean, low, high = ([p[side] for p in points] for side in ("mean", "low", "high"))
    return [
        Series(title, x, mean, low, high),
        Series(f"{title}, PCA", [x[0], x[-1]], [baseline, baseline], dashed=True, like=title),
    ]
