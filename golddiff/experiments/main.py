"""The paper's main table: five analytical denoisers against a network on three data sets."""

from __future__ import annotations

from golddiff.experiments.context import Context
from golddiff.experiments.likeness import Column
from golddiff.experiments.methods import GOLDDIFF_LESS_PCA, OURS_TOO, SETTINGS_NOTE
from golddiff.experiments.page import Page
from golddiff.experiments.tables import likeness_page

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
