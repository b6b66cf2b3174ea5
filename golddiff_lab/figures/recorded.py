"""Line plots from the JSON file of a command: saved panels, or panels built from its figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from golddiff.figures.curves import Panel, Series
from golddiff.system.errors import ArgumentError

LARGEST = 1e100  # far above any value worth plotting, far below overflow in matplotlib's scaling
LARGEST_INTEGER = 2**53
_NOISE = "noise level σ"


def panels_of(body: object) -> list[Panel]:
    """The plots in the contents of a file of ``evaluate``, ``reproduce``, ``bench`` or ``sample``.

    Raises:
        ArgumentError: nothing to plot, or not a format that golddiff writes.
    """
    if not isinstance(body, Mapping):
        raise ArgumentError("got no object, expected a file that golddiff wrote")
    try:
        panels = _panels(body)
        for panel in panels:
            _check(panel)
    except (TypeError, ValueError, KeyError, AttributeError, IndexError):
        raise ArgumentError("its figures are not as golddiff writes them") from None
    if not panels:
        raise ArgumentError("has no line plots: none of panels, levels or sigmas")
    return panels


def _panels(body: Mapping[str, Any]) -> list[Panel]:
    if body.get("panels"):
        return [_panel(panel) for panel in body["panels"]]
    if "levels" in body:
        return _race(body)
    if "sigmas" in body and "seconds" in body:
        return _sampled(body)
    return []


def _panel(figures: dict[str, Any]) -> Panel:
    """The panel of a dictionary of its fields."""
    series = [Series(**line) for line in figures["series"]]
    return Panel(**{**figures, "series": series})


def _check(panel: Panel) -> None:
    """Raise ValueError for a panel that cannot be drawn, such as one with texts for numbers."""
    if not {panel.xscale, panel.yscale} <= {"linear", "log"}:
        raise ValueError("an unknown scale")
    texts = [panel.title, panel.xlabel, panel.ylabel, *(line.name for line in panel.series)]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a text that is not a string")
    if any(v is not None and not _drawn(v) for v in (panel.floor, panel.mark)):
        raise ValueError("a floor or mark that is not a number")
    if panel.xscale == "log" and panel.mark is not None and panel.mark <= 0:
        raise ValueError("a mark that has no logarithm")
    if not panel.series:
        raise ValueError("no lines")
    for line in panel.series:
        bands = [band for band in (line.low, line.high) if band is not None]
        if any(len(values) != len(line.x) for values in (line.y, *bands)) or len(bands) == 1:
            raise ValueError("lines of unequal lengths")
        if not all(_drawn(x) for x in line.x) or not isinstance(line.like, str):
            raise ValueError("an x that is not a number")
        if panel.xscale == "log" and not all(x > 0 for x in line.x):
            raise ValueError("an x that has no logarithm")
        if not all(y is None or _drawn(y) for values in (line.y, *bands) for y in values):
            raise ValueError("a y that is not a number")


def _drawn(number: object) -> bool:
    if type(number) is int:  # NumPy would store a larger integer as an object
        return abs(number) < LARGEST_INTEGER
    return type(number) is float and abs(number) < LARGEST


def _race(body: Mapping[str, Any]) -> list[Panel]:
    """Panels of ``golddiff bench step``: time and error of each side by noise level."""
    levels = body["levels"]
    sigmas, sides = [level["sigma"] for level in levels], list(levels[0]["sides"])
    whose = f", {sides[0]}" if len(sides) == 1 else ""  # several are in the legend

    def lines(figure: str) -> list[Series]:
        return [
            Series(name, sigmas, [level["sides"][name][figure] for level in levels])
            for name in sides
        ]

    errors = [line for line in lines("rmse") if any(value is not None for value in line.y)]
    panels = [_falling(f"an image and step{whose}", "seconds", lines("seconds"))]
    if errors:
        panels.append(_falling(f"error against the full scan{whose}", "RMSE", errors))
    return panels


def _sampled(body: Mapping[str, Any]) -> list[Panel]:
    """Panel of ``golddiff sample``: seconds of each step for all images together."""
    line = Series(body["method"], body["sigmas"], body["seconds"]["per_step"])
    return [_falling(f"{body['n']} images by {body['method']}", "seconds a step", [line])]


def _falling(title: str, ylabel: str, lines: list[Series]) -> Panel:
    return Panel(title, _NOISE, ylabel, lines, "log", "log", falling=True)
