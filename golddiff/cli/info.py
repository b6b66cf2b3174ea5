"""``golddiff info``: show what is in a store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import golddiff
from golddiff.cli.command import argument, command, option
from golddiff.cli.options import JsonPath, check_apart
from golddiff.cli.terminal import describe, say, starting, summary, waiting, write_json
from golddiff.system.units import counted

CLASSES_SHOWN = 20


@dataclass(frozen=True)
class _InfoOptions:
    store: Path = argument("A store made by golddiff index.")
    verify: bool = option("Read every file and compare its checksum.", False)
    json: JsonPath = None


@command
def info(options: _InfoOptions) -> None:
    """Show what is in a store and check that it is complete.

    For example:

      golddiff info photos.store --verify
    """
    check_apart("json", options.json, options.store)
    starting()
    store = golddiff.ImageStore.open(options.store)
    if options.verify:
        with waiting("verifying checksums"):
            store.verify()
    say(describe(store))
    say(f"source: {store.manifest.source}")
    if store.classes:
        names = store.class_names or []
        shown = [
            f"{label} {names[label]!r} {n:,}" if label < len(names) else f"{label} {n:,}"
            for label, n in list(store.class_counts.items())[:CLASSES_SHOWN]
        ]
        hidden = len(store.classes) - len(shown)
        more = f", and {hidden:,} more" if hidden else ""
        say(f"classes: {', '.join(shown)}{more}")
    if store.manifest.skipped:
        left_out = counted(store.manifest.skipped, "unreadable image")
        say(f"skipped when the store was built: {left_out}")
    if options.verify:
        say(f"checksums: all {len(store.manifest.files)} files match")
    write_json(options.json, {**summary(store), "verified": options.verify})
