"""Batch-averaged weights (WSS) against exact ones (SS), over golden subsets."""

from __future__ import annotations

from golddiff_lab.paper.context import Context
from golddiff_lab.paper.likeness import Row
from golddiff_lab.paper.methods import golden_biased_settings, golden_settings
from golddiff_lab.paper.orthogonality import COLUMNS
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.tables import likeness_page

LABEL = "tab:ablation"
ROWS = (
    Row("GoldDiff + WSS", "golddiff-pca", golden_biased_settings),
    Row("GoldDiff + SS", "golddiff-pca", golden_settings),
)


def run(context: Context) -> Page:
    """The page of the table."""
    difference = ((ROWS[1].title, ROWS[0].title),)
    return likeness_page(context, LABEL, COLUMNS, ROWS, difference=difference)
