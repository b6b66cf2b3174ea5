"""The options that several commands share, each stated once, and the groups they come in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from golddiff.cli.command import ADVANCED, option
from golddiff.estimators.registry import METHODS, method_named
from golddiff.sources.source_options import SourceOptions
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_writable


def advanced(help: str, *names: str, **more: Any) -> Any:
    """An option of the second panel of a command's help."""
    return typer.Option(*names, help=help, rich_help_panel=ADVANCED, **more)


def _writable_json(path: Path | None) -> Path | None:
    if path is not None:
        check_writable("json", path)
    return path


def _whole_threads(threads: int | None) -> int | None:
    if threads is not None and threads < 1:
        raise ArgumentError(f"threads: got {threads}, expected 1 or more")
    return threads


JsonPath = Annotated[
    Path | None,
    typer.Option(
        "--json", help="Write settings and figures to this file.", metavar="PATH",
        callback=_writable_json,
    ),
]  # fmt: skip
MethodName = Annotated[
    str,
    typer.Option(
        help=", ".join(METHODS) + ".",
        callback=lambda given: given and method_named(given),
        metavar="NAME",
    ),
]
Steps = Annotated[int, typer.Option(help="Denoising steps, 1 to 1000.")]
Seed = Annotated[int, typer.Option(help="Of the starting noise and the random picks.")]
SamplerName = Annotated[str, advanced("ddim or heun.")]
Labels = Annotated[
    str | None,
    typer.Option(help="Only these classes, by number or name: one (3), or several in turn (0,1)."),
]
BatchSize = Annotated[int, advanced("Images denoised together.", "--batch-size", "--batch")]
Threads = Annotated[
    int | None,
    advanced("Threads to use; default: all cores.", show_default=False, callback=_whole_threads),
]
Cluster = Annotated[
    str | None,
    advanced(
        "Work on a Ray cluster: host:port of its head, auto for one that runs here, or local to "
        "start one of this machine's cores.",
        metavar="ADDRESS", show_default=False,
    ),
]  # fmt: skip

Size = Annotated[
    int | None,
    typer.Option(help="Scale the shorter side of each image to this and crop the middle square."),
]
Limit = Annotated[int | None, advanced("Read at most this many images.")]


@dataclass(frozen=True)
class ReadingOptions:
    """How a training set is read."""

    size: Size = None
    limit: Limit = None
    channels: int | None = option(
        "1 (grey) or 3 (RGB); default: as the images are.", None, panel=ADVANCED
    )
    split: str | None = option(
        "The part to read, where the source has parts; default train.", None, panel=ADVANCED
    )
    column: str | None = option(
        "The column (of a table) or array (of a .npz) that holds the images.", None, panel=ADVANCED
    )
    label_column: str | None = option(
        "The column or array that holds the class labels.", None, panel=ADVANCED
    )
    skip_bad: bool | None = option(
        "Leave out images that cannot be read, and say which; or stop at the first. Default: "
        "golddiff index stops, golddiff sample goes on.",
        None,
        panel=ADVANCED,
        names=("--skip-bad/--no-skip-bad",),
    )

    def source(self, seed: int = 0, *, skip_bad: bool) -> SourceOptions:
        """The same as the readers have it; ``skip_bad`` where it is not given."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        return SourceOptions(**{"skip_bad": skip_bad, **given}, seed=seed)
