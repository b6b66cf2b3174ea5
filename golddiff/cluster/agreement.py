"""Whether shards make one store: what each says of itself, compared."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from golddiff.cluster.listing import Listing
from golddiff.store.manifest import Manifest, identity_of
from golddiff.system.errors import ArgumentError, StoreError

ALIKE = ("shape", "dtype", "labelled", "class_names", "proxy_shape")


@dataclass(frozen=True)
class About:
    """What a shard says of itself."""

    manifest: Manifest  # of its store
    counts: dict[int, int]  # images of each class; empty without labels
    radius: float  # the largest norm of an image


def agreed(listing: Listing, abouts: Sequence[About | None]) -> str:
    """One checksum for all shards in their order."""
    first: tuple[str, Manifest] | None = None
    seen: dict[str, str] = {}
    digests = []
    for record, path, about in zip(listing.shards, listing.paths, abouts, strict=True):
        if about is None:
            digests.append("missing" if isinstance(record, str) else record.identity)
            continue
        manifest, digest = about.manifest, identity_of(about.manifest)
        first = first or (path, manifest)
        for name in ALIKE:
            mine, other = getattr(manifest, name), getattr(first[1], name)
            if mine != other:
                raise StoreError(
                    f"store: shard {path} has {name} {mine}, but {first[0]} has {other}; the "
                    "shards of a store are alike"
                )
        if not isinstance(record, str) and (record.n, record.identity) != (manifest.n, digest):
            raise StoreError(f"store: shard {path} is not the one that its list names")
        if digest in seen:
            raise ArgumentError(
                f"source: shards {seen[digest]} and {path} hold the same images (their "
                "checksums are equal); a shard is listed twice"
            )
        seen[digest] = path
        digests.append(digest)
    return hashlib.sha256("\n".join(digests).encode()).hexdigest()
