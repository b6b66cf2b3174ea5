"""``shards.json``: which shards a store is made of, in which order; their folders.

A shard's folder lies on this machine, or is copied there once from an object store.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.store.manifest import NAME as MANIFEST
from golddiff.store.manifest import Manifest, identity_of, sealed, unsealed
from golddiff.system.errors import ArgumentError, StoreError
from golddiff.system.files import leads_out, written_whole

NAME = "shards.json"
FORMAT = "golddiff-shards"
VERSION = 1
ALIKE = ("shape", "dtype", "labelled", "class_names", "proxy_shape")


@dataclass(frozen=True)
class ShardRecord:
    """One shard; of a plain list of paths its path alone is known."""

    path: str  # as seen from the list
    n: int = 0  # its images
    identity: str = ""  # its checksum


@dataclass(frozen=True)
class About:
    """What a shard says of itself."""

    manifest: Manifest  # of its store
    counts: dict[int, int]  # images of each class; empty without labels
    radius: float  # the largest norm of an image


@dataclass(frozen=True)
class Listing:
    """The shards of a store in the order of their rows."""

    shards: Sequence[ShardRecord]
    home: str | None = None  # folder or address that the list lies in; None for a plain list

    def __post_init__(self) -> None:
        if not self.shards:
            raise ArgumentError("source: got no shards, expected at least one")
        seen: set[str] = set()
        for path in self.paths:
            plain = os.path.realpath(path) if is_local(path) else path
            if plain in seen:
                raise ArgumentError(f"source: shard {path} is listed twice")
            seen.add(plain)

    @property
    def paths(self) -> list[str]:
        """The shards' paths, those of folders absolute: actors run in other folders."""
        paths = [joined(self.home or "", shard.path) for shard in self.shards]
        return [os.path.abspath(without_scheme(p)) if is_local(p) else p for p in paths]

    def write(self, folder: Path) -> None:
        """Write the list into a folder, whole or not at all."""
        body = {"shards": [asdict(shard) for shard in self.shards]}
        with written_whole("out", folder / NAME) as temporary:
            temporary.write_text(sealed(FORMAT, VERSION, body), encoding="utf-8")

    @classmethod
    def of(cls, source: str | Path | Sequence[str | Path]) -> Listing:
        """The shards that a user names: a folder with a list in it, the list, or several paths.

        Raises:
            StoreError, ArgumentError: a list that cannot be read; no shard, or one twice.
        """
        if isinstance(source, str | Path):
            return cls._read(str(source))
        if not isinstance(source, Sequence) or not all(isinstance(p, str | Path) for p in source):
            raise ArgumentError(
                f"source: got {type(source).__name__}, expected the path of a {NAME}, of its "
                "folder, or a list of the shards' paths"
            )
        return cls([ShardRecord(str(path)) for path in source])

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
                digests.append(record.identity or "missing")
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
            if record.identity and (record.n, record.identity) != (manifest.n, digest):
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
        home = home or "."
        path = joined(home, NAME)
        body = unsealed(path, _read_text(path), FORMAT, VERSION, "list of shards of golddiff")
        try:
            records = [ShardRecord(**record) for record in body["shards"]]
            if not all(type(r.path) is str and "\0" not in r.path for r in records):
                raise ValueError("a path that is none")
            if any(_leads_out(home, r.path) for r in records):
                raise ValueError("a shard outside its folder")
            if not all(type(r.n) is int and r.n > 0 and type(r.identity) is str for r in records):
                raise ValueError("a shard without its number of images")
        except (KeyError, TypeError, ValueError) as error:
            raise StoreError(f"store: {path} is damaged ({error}); build the store again") from None
        return cls(records, home)


def _leads_out(home: str, path: str) -> bool:
    """Whether a shard's path is no name below the list's folder, or a link that leads out of it."""
    parts = path.replace("\\", "/").split("/")
    if not path or ".." in parts or os.path.isabs(path) or "://" in path:
        return True
    folder = Path(without_scheme(home))
    return is_local(home) and leads_out(folder, folder / path)


def is_local(path: str) -> bool:
    """Whether a path is a folder's, and no address that fsspec reads."""
    return "://" not in path or path.startswith("file://")


def joined(base: str, name: str) -> str:
    """A name below a folder or an address; an absolute name or an address stays as it is."""
    if "://" in name or os.path.isabs(name):
        return name
    if is_local(base):
        return str(Path(without_scheme(base)) / name)
    first, chain, rest = base.partition("::")
    made = first + name if first.endswith("://") else first.rstrip("/") + "/" + name
    return made + chain + rest


def without_scheme(path: str) -> str:
    """A local path without ``file://``."""
    return path.removeprefix("file://")


def local_folder(path: str) -> Path:
    """The shard's folder on this machine.

    An address (s3://, gs://, https://, zip://...::...) is copied whole to the cache folder
    ($GOLDDIFF_CACHE) at first use, its checksums are verified, and it is found there afterwards
    under a name that changes with its contents.
    """
    if is_local(path):
        return Path(without_scheme(path))
    text = _read_text(joined(path, MANIFEST))
    place = cache_folder() / "shards" / hashlib.sha256(text.encode()).hexdigest()[:24]
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        (partial / MANIFEST).write_text(text, encoding="utf-8")
        files, root = _file_system(path)
        for name in Manifest.read(partial).files:
            files.get_file(f"{root.rstrip('/')}/{name}", str(partial / name))
        ImageStore.open(partial).verify()
        try:
            os.rename(partial, place)
        except OSError:  # another process of this machine was quicker
            if not place.is_dir():
                raise
    except (OSError, KeyError, ValueError) as error:
        if isinstance(error, StoreError):
            raise
        raise _unreadable(path, error) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return place


def _read_text(path: str) -> str:
    try:
        files, root = _file_system(path)
        return bytes(files.cat_file(root)).decode("utf-8")
    except (OSError, KeyError, ValueError) as error:
        raise _unreadable(path, error) from error


def _file_system(path: str) -> tuple[Any, str]:
    import fsspec  # a part of datasets' requirements

    try:
        files, root = fsspec.core.url_to_fs(path)
    except ImportError as error:
        raise StoreError(f"store: {path} cannot be read here: {error}") from error
    return files, str(root)


def _unreadable(path: str, error: Exception) -> StoreError:
    if isinstance(error, FileNotFoundError | KeyError):
        return StoreError(f"store: {path} is not there")
    return StoreError(f"store: {path} cannot be read ({error})")
