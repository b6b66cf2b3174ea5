"""The options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.parse import parse_patch_size, parse_size, parse_tol
from golddiff.registry import MethodSettings

_IMAGES = "Reading the images"
_METHOD = "Method"
_SCHEDULE = "Golden subset"
_COUNT = "a count (100) or a fraction (0.05, 1/20)"

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

Cluster = Annotated[
    str | None,
    typer.Option(
        help="Work on a Ray cluster: host:port of its head, auto for one that runs here, or local "
        "to start one of this machine's cores.",
        metavar="ADDRESS",
        show_default=False,
    ),
]

MaskThreshold = Annotated[
    float | None,
    typer.Option(
        help="PCA: mask threshold, 0 to 1; default 0.02, or 0.03 for 32 x 32 RGB.",
        rich_help_panel=_METHOD,
    ),
]
Weighting = Annotated[
    str | None,
    typer.Option(help="PCA: ss (exact; default) or wss.", rich_help_panel=_METHOD),
]
PatchSize = Annotated[
    str | None,
    typer.Option(
        help="Kamb: an odd number, or the name of a calibration; default: from the data.",
        rich_help_panel=_METHOD,
    ),
]
BoundaryRule = Annotated[
    str | None,
    typer.Option(help="Kamb: zeros (default), circular or none.", rich_help_panel=_METHOD),
]
Variant = Annotated[
    str | None,
    typer.Option(
        help="The paper's schedule: released (as its code; default) or text.",
        rich_help_panel=_SCHEDULE,
    ),
]
KMin = Annotated[
    str | None,
    typer.Option(help=f"Smallest subset: {_COUNT}; default 1/20.", rich_help_panel=_SCHEDULE),
]
KMax = Annotated[
    str | None,
    typer.Option(help="Largest subset; default 1/10.", rich_help_panel=_SCHEDULE),
]
MMin = Annotated[
    str | None,
    typer.Option(
        help="Fewest screened, with --variant text; default 1/10.", rich_help_panel=_SCHEDULE
    ),
]
MMax = Annotated[
    str | None,
    typer.Option(
        help="Most screened, with --variant text; default 1/4.", rich_help_panel=_SCHEDULE
    ),
]
Tol = Annotated[
    str | None,
    typer.Option(
        help="Adaptive methods: RMSE to the full scan, default 0.02.",
        rich_help_panel=_SCHEDULE,
    ),
]


def method_settings(
    mask_threshold: float | None,
    weighting: str | None,
    patch_size: str | None,
    boundary: str | None,
    variant: str | None,
    k_min: str | None,
    k_max: str | None,
    m_min: str | None,
    m_max: str | None,
    tol: str | None,
) -> MethodSettings:
    """The options above as settings.

    Raises:
        ArgumentError: a size that is neither a count nor a fraction.
    """
    sizes = (("k_min", k_min), ("k_max", k_max), ("m_min", m_min), ("m_max", m_max))
    return MethodSettings(
        mask_threshold, weighting, parse_patch_size(patch_size), boundary, variant,
        **{name: parse_size(name, text) for name, text in sizes}, tol=parse_tol(tol),
    )  # fmt: skip
