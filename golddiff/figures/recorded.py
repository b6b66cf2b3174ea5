"""The line plots in a JSON file that a command wrote: kept as panels, or made from its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from golddiff.errors import ArgumentError
from golddiff.figures.curves import Panel, Series

_NOISE = "noise level σ"


def panels_of(body: object) -> list[Panel]:
    """The plots of what ``evaluate``, ``reproduce``, ``bench`` or ``sample`` wrote with --json.

    Args:
        body: the file's contents.

    Raises:
        ArgumentError: nothing to plot in it, or not as golddiff writes it.
    """
    if not isinstance(body, Mapping):
        raise ArgumentError("got no object, expected a file that golddiff wrote")
    try:
        if body.get("panels"):
            return [Panel.read(panel) for panel in body["panels"]]
        if "levels" in body:
            return _race(body)
        if "rows" in body and "limit" in body:
            return _patches(body)
        if "sigmas" in body and "seconds" in body:
            return _sampled(body)
    except (TypeError, KeyError, AttributeError, IndexError):
        raise ArgumentError("its figures are not as golddiff writes them") from None
    raise ArgumentError("has no line plots: none of panels, levels, rows or sigmas")


def _race(body: Mapping[str, Any]) -> list[Panel]:
    """``golddiff bench step``: each side's time and error at each noise level."""
    levels = body["levels"]
    sigmas = [level["sigma"] for level in levels]

    def lines(figure: str) -> list[Series]:
        return [
            Series(name, sigmas, [level["sides"][name][figure] for level in levels])
            for name in levels[0]["sides"]
        ]

    errors = [line for line in lines("rmse") if any(value is not None for value in line.y)]
    panels = [_falling("an image and step", "seconds", lines("seconds"))]
    if errors:
        panels.append(_falling("error against the full scan", "RMSE", errors))
    return panels


def _patches(body: Mapping[str, Any]) -> list[Panel]:
    """``golddiff bench kamb``: both sides' time against the patch size."""
    series = [
        Series(
            f"{side}, {boundary}",
            [row["size"] for row in body["rows"] if row["boundary"] == boundary],
            [row[side] for row in body["rows"] if row["boundary"] == boundary],
        )
        for boundary in dict.fromkeys(row["boundary"] for row in body["rows"])
        for side in ("ours", "theirs")
    ]
    title = f"Kamb over {body['limit']:,} images"
    return [Panel(title, "patch size", "seconds an image and step", series, "linear", "log")]


def _sampled(body: Mapping[str, Any]) -> list[Panel]:
    """``golddiff sample``: seconds of each step, all images together."""
    line = Series(body["method"], body["sigmas"], body["seconds"]["per_step"])
    return [_falling(f"{body['n']} images by {body['method']}", "seconds a step", [line])]


def _falling(title: str, ylabel: str, lines: list[Series]) -> Panel:
    return Panel(title, _NOISE, ylabel, lines, "log", "log", falling=True)
