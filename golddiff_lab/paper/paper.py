"""The numbers printed in the paper, by table, column and row."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

Cells = dict[str, dict[str, dict[str, str]]]


def paper_value(label: str | None, group: str | None, row: str, metric: str) -> str | None:
    """The text printed in the paper; None if the paper has no such entry.

    Args:
        label: LaTeX label of the table, such as "tab:main_results_1"; None for our own tables.
        group: data set or setting, such as "CIFAR-10"; None for our own columns.
        row: method.
        metric: "MSE", "r2", "Time" or "Memory".
    """
    if label is None:
        return None
    return tables()[label].get(group or "", {}).get(row, {}).get(metric)


@cache
def tables() -> dict[str, Cells]:
    """By label, the cells of every table: group -> row -> metric -> text."""
    file = resources.files("golddiff_lab") / "data" / "paper_tables.json"
    by_label = json.loads(file.read_text("utf-8"))["tables"]
    return {label: table["cells"] for label, table in by_label.items()}
