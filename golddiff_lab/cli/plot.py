"""``golddiff plot``: redraw line plots from JSON files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from golddiff.cli.command import argument, command, option
from golddiff.cli.terminal import say
from golddiff.system.errors import ArgumentError
from golddiff.system.files import PICTURES, check_writable
from golddiff.system.units import counted


@dataclass(frozen=True)
class PlotOptions:
    """The options of ``golddiff plot``."""

    paths: list[Path] = argument(
        "JSON files written by evaluate, reproduce, bench or sample.", metavar="PATH.json..."
    )
    out: Path | None = option(
        "The picture to write, of a single JSON file; default: PATH.plot.png beside each.", None
    )
    title: str = option("Title above the plots.", "")


@command
def plot(options: PlotOptions) -> None:
    """Draw line plots from the JSON files of other commands.

    For example:

      golddiff plot results/main.json results/theorem1.json
      golddiff plot compared/evaluation.json --out curves.png --title CIFAR-10
    """
    paths = options.paths
    if options.out is not None and len(paths) > 1:
        raise ArgumentError(f"out: got {len(paths)} JSON files, expected one")
    targets = [options.out or path.with_suffix(".plot.png") for path in paths]
    for target in targets:
        check_writable("out", target, PICTURES)
    bodies = [_read(path) for path in paths]

    from golddiff.figures.curves import draw_panels
    from golddiff.system.pictures import save
    from golddiff_lab.figures.recorded import panels_of

    for path, body, target in zip(paths, bodies, targets, strict=True):
        try:
            panels = panels_of(body)
        except ArgumentError as error:
            raise ArgumentError(f"paths: {path}: {error}") from None
        save("out", draw_panels(panels, options.title), target)
        say(f"{target}: {counted(len(panels), 'plot')}")


def _read(path: Path) -> object:
    try:
        return json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ArgumentError(f"paths: {path} cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        raise ArgumentError(f"paths: {path} is not JSON") from None
