"""The paper's own figures, as printed, by table, column and row."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources

Cells = dict[str, dict[str, dict[str, str]]]


def paper_value(label: str | None, group: str | None, row: str, metric: str) -> str | None:
    """What the paper prints, or None where it has no such entry.

    Args:
        label: LaTeX label of the table, "tab:main_results_1"; None for a table of ours alone.
        group: data set or setting, "CIFAR-10"; None for a column of ours alone.
        row: method.
        metric: "MSE", "r2", "Time" or "Memory".
    """
    if label is None:
        return None
    return tables()[label].get(group or "", {}).get(row, {}).get(metric)


@cache
def tables() -> dict[str, Cells]:
    """Every table by its label: group, row, metric, text."""
    file = resources.files("golddiff_lab") / "data" / "paper_tables.json"
    read = json.loads(file.read_text("utf-8"))["tables"]
    return {label: table["cells"] for label, table in read.items()}
