"""The same table for MNIST and Fashion-MNIST (the paper's appendix)."""

from __future__ import annotations

from golddiff_lab.paper.context import Context
from golddiff_lab.paper.likeness import Column
from golddiff_lab.paper.main import METRICS
from golddiff_lab.paper.methods import GOLDDIFF_LESS_PCA, OURS_TOO, SETTINGS_NOTE
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.tables import likeness_page

LABEL = "tab:main_comparison_mnist"
COLUMNS = (
    Column("MNIST", "mnist", "MNIST"),
    Column("Fashion-MNIST", "fashion-mnist", "Fashion-MNIST"),
)


def run(context: Context) -> Page:
    """The page of the table."""
    return likeness_page(
        context, LABEL, COLUMNS, OURS_TOO, METRICS, GOLDDIFF_LESS_PCA, [SETTINGS_NOTE]
    )
