"""Optimal and Kamb with and without golden subsets."""

from __future__ import annotations

from golddiff.estimators.registry import MethodSettings
from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DataSet
from golddiff_lab.paper.likeness import Column, Row
from golddiff_lab.paper.methods import KAMB, OPTIMAL
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.tables import likeness_page

LABEL = "tab:orthogonal"
COLUMNS = (
    Column("CelebA-HQ", "celeba-hq", "CelebA-HQ"),
    Column("AFHQv2", "afhq", "AFHQ"),
    Column("CIFAR-10 (not in the paper's table)", "cifar10", None, stand_in=True),
    Column("MNIST (not in the paper's table)", "mnist", None, stand_in=True),
)


def _released(data: DataSet) -> MethodSettings:
    return MethodSettings(variant="released")


def _released_kamb(data: DataSet) -> MethodSettings:
    return MethodSettings(variant="released", patch_size=data.kamb)


ROWS = (
    OPTIMAL,
    Row("Optimal + GoldDiff", "golddiff-optimal", _released),
    KAMB,
    Row("Kamb + GoldDiff", "golddiff-kamb", _released_kamb),
)
DIFFERENCES = (("Optimal + GoldDiff", "Optimal"), ("Kamb + GoldDiff", "Kamb"))


def run(context: Context) -> Page:
    """The page of the table."""
    return likeness_page(context, LABEL, COLUMNS, ROWS, ("MSE", "r2", "Time"), DIFFERENCES)
