"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_IMAGES = "Reading the images"

Size = Annotated[
    int | None,
    typer.Option(
        help="Scale the shorter side of each image to this and crop the middle square.",
        rich_help_panel=_IMAGES,
    ),
]
Channels = Annotated[
    int | None,
    typer.Option(help="1 (grey) or 3 (RGB); default: as the images are.", rich_help_panel=_IMAGES),
]
Split = Annotated[
    str | None,
    typer.Option(
        help="The part to read, where the source has parts; default train.",
        rich_help_panel=_IMAGES,
    ),
]
Column = Annotated[
    str | None,
    typer.Option(
        help="The column (of a table) or array (of a .npz) that holds the images.",
        rich_help_panel=_IMAGES,
    ),
]
LabelColumn = Annotated[
    str | None,
    typer.Option(help="The column or array that holds the class labels.", rich_help_panel=_IMAGES),
]
SkipBad = Annotated[
    bool,
    typer.Option(
        "--skip-bad",
        help="Leave out images that cannot be read, instead of stopping.",
        rich_help_panel=_IMAGES,
    ),
]
SkipBadByDefault = Annotated[
    bool,
    typer.Option(
        "--skip-bad/--no-skip-bad",
        help="Leave out images that cannot be read, and say which; or stop at the first.",
        rich_help_panel=_IMAGES,
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(help="Read at most this many examples.", rich_help_panel=_IMAGES),
]
JsonPath = Annotated[
    Path | None,
    typer.Option("--json", help="Write settings and figures to this file.", metavar="PATH"),
]
