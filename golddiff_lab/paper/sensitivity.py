"""Sensitivity to the largest candidate set m_max and to the smallest golden subset k_min."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

from golddiff.estimators.registry import MethodSettings
from golddiff.figures.curves import Panel, Series
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DataSet
from golddiff_lab.paper.likeness import Column, Row
from golddiff_lab.paper.likeness_tables import PCA, golden_settings
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.tables import LikenessTable

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
    rows = (Row(f"{name} = {v} N", "golddiff-pca", partial(settings, v)) for v in values)
    metrics = ("MSE", "r2", "Time")
    page = LikenessTable(None, COLUMNS, (*rows, PCA), metrics, notes=(note,)).run(context)
    x = [float(v) for v in values]
    page.panels = [
        Panel(title, f"{name} / N", title, _series(page.rows, x, metric), xscale="log")
        for metric, title in (("mse", "MSE"), ("r2", "r2"))
        if page.rows
    ]
    return page


def _series(rows: list[dict[str, Any]], x: list[float], metric: str) -> list[Series]:
    """For each data set, GoldDiff against the setting, and PCA as a dashed line."""
    series = []
    for column in dict.fromkeys(row["column"] for row in rows):
        *points, baseline = [row[metric] for row in rows if row["column"] == column]
        mean, low, high = ([p[side] for p in points] for side in ("mean", "low", "high"))
        series += [
            Series(column, x, mean, low, high),
            Series(f"{column}, PCA", [x[0], x[-1]], [baseline["mean"]] * 2, dashed=True,
                   like=column),
        ]  # fmt: skip
    return series
