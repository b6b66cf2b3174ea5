"""The paper's main table: five analytical denoisers against a network on three data sets."""

from __future__ import annotations

from golddiff_lab.paper.context import Context
from golddiff_lab.paper.likeness import Column
from golddiff_lab.paper.methods import GOLDDIFF_LESS_PCA, OURS_TOO, SETTINGS_NOTE
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.tables import likeness_page

LABEL = "tab:main_results_1"
METRICS = ("MSE", "r2", "Time", "Memory")
COLUMNS = (
    Column("CIFAR-10", "cifar10", "CIFAR-10"),
    Column("CelebA-HQ", "celeba-hq", "CelebA-HQ"),
    Column("AFHQv2", "afhq", "AFHQ"),
)


def run(context: Context) -> Page:
    """The page of the table."""
    return likeness_page(
        context, LABEL, COLUMNS, OURS_TOO, METRICS, GOLDDIFF_LESS_PCA, [SETTINGS_NOTE]
    )
