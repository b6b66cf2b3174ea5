"""``golddiff bench enlarge``: a set of any size made of a smaller one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.summary import describe
from golddiff.cli.terminal import say, watched
from golddiff.sources.source_options import SourceOptions


def enlarge(
    store: Annotated[Path, typer.Argument(help="A folder that golddiff index made.")],
    out: Annotated[Path, typer.Argument(help="The folder to make.")],
    limit: Annotated[int, typer.Option(help="Images of the new set.")],
    seed: Annotated[int, typer.Option(help="Of the changes.")] = 0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a store that is there already.")
    ] = False,
) -> None:
    """Make a store of a store's images and changed copies of them. Not real data: for timing.

    For example:

      golddiff bench enlarge imagenet64.store million.store --limit 1280000
    """
    options = SourceOptions(limit=limit, seed=seed)  # checked before anything is read

    from golddiff.store.build import build
    from golddiff.store.images import ImageStore
    from golddiff.store.opening import open_store
    from golddiff_lab.scaling.enlarged import EnlargedSource

    source = EnlargedSource(open_store(store, SourceOptions()), limit, options.seed)
    build(source, out, overwrite=overwrite, progress=watched())
    say(describe(ImageStore.open(out)))
