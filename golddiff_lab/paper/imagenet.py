"""ImageNet, unconditional and conditional, 10 and 100 steps."""

from __future__ import annotations

from golddiff_lab.paper.context import Context
from golddiff_lab.paper.datasets import DATA_SETS
from golddiff_lab.paper.likeness import Column
from golddiff_lab.paper.methods import GOLDDIFF, PCA, PCA_UNBIASED, SETTINGS_NOTE
from golddiff_lab.paper.page import Page
from golddiff_lab.paper.tables import likeness_page

LABEL = "tab:pca_results_large"
ROWS = (PCA, PCA_UNBIASED, GOLDDIFF)
DIFFERENCES = ((GOLDDIFF.title, PCA.title), (GOLDDIFF.title, PCA_UNBIASED.title))

CONDITIONAL_NOTE = (
    "Conditional: the classes in turn, each image denoised over its class alone, against a network "
    "that is told the class (`--oracle imagenet-conditional=PATH`)."
)


def _column(data: str, steps: int, *, conditional: bool) -> Column:
    kind = "conditional" if conditional else "unconditional"
    group = f"{kind}, {steps} steps"
    return Column(
        f"{DATA_SETS[data].title}, {group}",
        data,
        # The stand-in is another data set: the paper's figures are not its.
        group if data == "imagenet" else None,
        f"{data}-conditional" if conditional else data,
        steps,
        conditional=conditional,
        stand_in=data != "imagenet",
    )


COLUMNS = tuple(
    _column(data, steps, conditional=conditional)
    for data in ("imagenet", "imagenet64-100")
    for steps in (10, 100)
    for conditional in (False, True)
)


def run(context: Context) -> Page:
    """The page of the table."""
    metrics = ("MSE", "r2", "Time")
    return likeness_page(
        context, LABEL, COLUMNS, ROWS, metrics, DIFFERENCES, [SETTINGS_NOTE, CONDITIONAL_NOTE]
    )
