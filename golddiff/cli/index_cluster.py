"""What ``golddiff index --cluster`` does: build a store in shards."""

from __future__ import annotations

import time
from pathlib import Path

from golddiff.cli.cluster import JOINING, join
from golddiff.cli.terminal import progress_bar, say, write_json
from golddiff.store.cache import SourceOptions
from golddiff.store.manifest import Manifest
from golddiff.system.units import byte_size, duration, shape_text


def index_on_cluster(
    source: str,
    out: Path,
    address: str,
    shards: int | None,
    options: SourceOptions,
    overwrite: bool,
    json: Path | None,
) -> None:
    """Build the shards that are not there yet, and say what there is then.

    Raises:
        GoldDiffError: see :func:`golddiff.cluster.build_shards`.
    """
    from golddiff.cluster import build_shards
    from golddiff.cluster.listing import Listing

    start = time.perf_counter()
    with progress_bar() as bar:
        task = bar.add_task(JOINING, total=None)
        join(address)
        bar.update(task, description="shards")
        built = build_shards(
            source, out, shards, options, overwrite=overwrite,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    seconds = time.perf_counter() - start
    before = f", {built.found:,} of them were there" if built.found else ""
    manifests = [Manifest.read(Path(path)) for path in Listing.of(out).paths]
    size = sum(record.bytes for manifest in manifests for record in manifest.files.values())
    say(
        f"{out}: {built.n:,} images, {shape_text(manifests[0].shape)}, in {built.shards:,} "
        f"shards{before}, {byte_size(size)} in {duration(seconds)}"
    )
    for line in built.skipped.lines():
        say(line)
    if json is not None:
        pairs = zip(built.skipped.names, built.skipped.reasons, strict=True)
        figures = {
            "path": str(built.path), "n": built.n, "shards": built.shards, "found": built.found,
            "shape": list(manifests[0].shape), "bytes": size, "seconds": seconds,
            "skipped_images": [{"name": name, "reason": reason} for name, reason in pairs],
        }  # fmt: skip
        write_json(json, figures)
