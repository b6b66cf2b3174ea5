"""``golddiff info``: what is in a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from golddiff.cli.options import JsonPath
from golddiff.cli.summary import class_counts, describe, summary
from golddiff.cli.terminal import say, write_json
from golddiff.system.files import check_writable

CLASSES_SHOWN = 20


def info(
    store: Annotated[Path, typer.Argument(help="A folder that golddiff index made.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every file and compare its checksum.")
    ] = False,
    json: JsonPath = None,
) -> None:
    """Show what is in a store, and check that it is whole.

    For example:

      golddiff info photos.store --verify
    """
    if json is not None:
        check_writable("json", json)

    from golddiff.store.images import ImageStore

    opened = ImageStore.open(store)
    if verify:
        opened.verify()
    say(describe(opened))
    say(f"source: {opened.manifest.source}")
    counts = class_counts(opened)
    if counts:
        names = opened.class_names or []
        shown = [
            f"{label} {names[int(label)]!r} {n:,}" if int(label) < len(names) else f"{label} {n:,}"
            for label, n in list(counts.items())[:CLASSES_SHOWN]
        ]
        more = f", and {len(counts) - len(shown):,} more" if len(counts) > len(shown) else ""
        say(f"classes: {', '.join(shown)}{more}")
    if opened.manifest.skipped:
        say(f"left out while building: {opened.manifest.skipped:,} that could not be read")
    if verify:
        say(f"checksums: all {len(opened.manifest.files)} files match")
    if json is not None:
        write_json(json, {**summary(opened), "verified": verify})
