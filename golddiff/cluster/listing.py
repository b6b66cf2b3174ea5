"""``shards.json``: which shards a store is made of, in which order; whether they fit together."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from golddiff.cluster.copies import is_local, joined, read_text, without_scheme
from golddiff.store.manifest import Manifest, identity_of, sealed, unsealed
from golddiff.system.errors import ArgumentError, StoreError
from golddiff.system.files import leads_out, written_whole

NAME = "shards.json"
FORMAT = "golddiff-shards"
VERSION = 1
ALIKE = ("shape", "dtype", "labelled", "class_names", "proxy_shape")


@dataclass(frozen=True)
class ShardRecord:
    """One shard: where it lies, as seen from the list; its images; its checksums."""

    path: str
    n: int
    identity: str


@dataclass(frozen=True)
class About:
    """What a shard says of itself."""

    manifest: Manifest  # of its store
    counts: dict[int, int]  # images of each class; empty without labels
    radius: float  # the largest norm of an image


@dataclass(frozen=True)
class Listing:
    """The shards of a store in the order of their rows.

    Attributes:
        shards: a record for each, or the path alone where nothing more is known.
        home: the folder or address that the list itself lies in; None for a plain list.
    """

    shards: Sequence[ShardRecord | str]
    home: str | None = None

    @property
    def paths(self) -> list[str]:
        """The shards' paths, those of folders absolute: actors run in other folders."""
        base = self.home or ""
        paths = [
            shard if isinstance(shard, str) else joined(base, shard.path) for shard in self.shards
        ]
        return [os.path.abspath(without_scheme(p)) if is_local(p) else p for p in paths]

    def write(self, folder: Path) -> None:
        """Write the list into a folder, whole or not at all."""
        records = [asdict(shard) for shard in self.shards if not isinstance(shard, str)]
        with written_whole("out", folder / NAME) as temporary:
            temporary.write_text(sealed(FORMAT, VERSION, {"shards": records}), encoding="utf-8")

    @classmethod
    def of(cls, source: str | Path | Sequence[str | Path]) -> Listing:
        """The shards that a user names: a folder with a list in it, the list, or several paths."""
        if isinstance(source, str | Path):
            return cls._read(str(source))
        if not isinstance(source, Sequence) or not all(isinstance(p, str | Path) for p in source):
            raise ArgumentError(
                f"source: got {type(source).__name__}, expected the path of a {NAME}, of its "
                "folder, or a list of the shards' paths"
            )
        listing = cls([str(path) for path in source])
        listing.check()
        return listing

    def check(self) -> None:
        """Raise where there is nothing, or something twice."""
        if not self.shards:
            raise ArgumentError("source: got no shards, expected at least one")
        seen: set[str] = set()
        for path in self.paths:
            plain = os.path.realpath(path) if is_local(path) else path
            if plain in seen:
                raise ArgumentError(f"source: shard {path} is listed twice")
            seen.add(plain)

    def agreed(self, abouts: Sequence[About | None]) -> str:
        """One checksum for all shards in their order, once what each says of itself fits.

        Raises:
            StoreError, ArgumentError: shards that do not make one store.
        """
        first: tuple[str, Manifest] | None = None
        seen: dict[str, str] = {}
        digests = []
        for record, path, about in zip(self.shards, self.paths, abouts, strict=True):
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

    @classmethod
    def _read(cls, source: str) -> Listing:
        home = source.removesuffix(NAME).rstrip("/") if source.endswith(NAME) else source
        path = joined(home or ".", NAME)
        body = unsealed(path, read_text(path), FORMAT, VERSION, "list of shards of golddiff")
        try:
            records = [ShardRecord(**record) for record in body["shards"]]
            if not all(type(r.path) is str and "\0" not in r.path for r in records):
                raise ValueError("a path that is none")
            if any(_leads_out(home or ".", r.path) for r in records):
                raise ValueError("a shard outside its folder")
            if not all(type(r.n) is int and type(r.identity) is str for r in records):
                raise ValueError("a shard without its number of images")
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"store: {path} is damaged ({error}); build the store again") from None
        listing = cls(records, home or ".")
        listing.check()
        return listing


def _leads_out(home: str, path: str) -> bool:
    """Whether a shard's path is no name below the list's folder, or a link that leads out of it."""
    parts = path.replace("\\", "/").split("/")
    if not path or ".." in parts or os.path.isabs(path) or "://" in path:
        return True
    folder = Path(without_scheme(home))
    return is_local(home) and leads_out(folder, folder / path)
