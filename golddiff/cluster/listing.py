"""``shards.json``, the ordered list of a store's shards, and the shards' folders.

A shard's folder is on this machine, or is copied there once from an object store.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.store.manifest import NAME as MANIFEST
from golddiff.store.manifest import SHARDS, Manifest, damaged, sealed, unsealed
from golddiff.system.errors import ArgumentError, BusyError, ClusterError, StoreError
from golddiff.system.files import atomic_write, leads_out
from golddiff.system.folders import folder_in_place, wait_for_builder

NAME = SHARDS
FORMAT = "golddiff-shards"
VERSION = 1
SHARED_FIELDS = ("shape", "dtype", "labelled", "is_pixels", "class_names", "proxy_shape")


@dataclass(frozen=True)
class ShardRecord:
    """One entry of the list; only the path is known for a plain list of paths."""

    path: str  # relative to the list
    n: int = 0  # number of images
    identity: str = ""  # checksum


@dataclass(frozen=True)
class ShardInfo:
    """Manifest and statistics that a shard reports when it is opened."""

    manifest: Manifest
    counts: dict[int, int]  # number of images of each class; empty without labels
    radius: float  # largest norm of an image


@dataclass(frozen=True)
class Listing:
    """The shards of a store in the order of their rows."""

    shards: Sequence[ShardRecord]
    home: str | None = None  # folder or address that contains the list; None for a plain list

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
        """The shards' paths; local ones are absolute, as actors run in other folders."""
        paths = [join_path(self.home or "", shard.path) for shard in self.shards]
        return [os.path.abspath(without_scheme(p)) if is_local(p) else p for p in paths]

    def write(self, folder: Path) -> None:
        """Write the list into a folder, atomically."""
        body = {"shards": [asdict(shard) for shard in self.shards]}
        with atomic_write("out", folder / NAME) as temporary:
            temporary.write_text(sealed(FORMAT, VERSION, body), encoding="utf-8")

    @classmethod
    def of(cls, source: str | Path | Sequence[str | Path]) -> Listing:
        """From the path of a list or of its folder, or from the paths of the shards.

        Raises:
            StoreError: the list cannot be read.
            ArgumentError: no shard is given, or one twice.
        """
        if isinstance(source, str | Path):
            return cls._read(str(source))
        if not isinstance(source, Sequence) or not all(isinstance(p, str | Path) for p in source):
            raise ArgumentError(
                f"source: got {type(source).__name__}, expected the path of a {NAME}, of its "
                "folder, or a list of the shards' paths"
            )
        return cls([ShardRecord(str(path)) for path in source])

    def checked_identity(self, infos: Sequence[ShardInfo | None]) -> str:
        """Check that the shards form one store; returns one checksum for all of them in order.

        Raises:
            StoreError: shards differ in shape, dtype, labels or class names, or from the list.
            ArgumentError: a shard is listed twice.
            ClusterError: a shard is missing, and the list does not say how many images it has.
        """
        reference: tuple[str, Manifest] | None = None
        seen: dict[str, str] = {}
        digests = []
        for record, path, info in zip(self.shards, self.paths, infos, strict=True):
            if info is None:
                if not record.n:
                    raise ClusterError(
                        f"cluster: shard {path} is missing, and its size is unknown; give a "
                        "shards.json, which lists the sizes, instead of the shards' paths"
                    )
                digests.append(record.identity or "missing")
                continue
            manifest, digest = info.manifest, info.manifest.identity
            reference = reference or (path, manifest)
            for field in SHARED_FIELDS:
                value, expected = getattr(manifest, field), getattr(reference[1], field)
                if value != expected:
                    raise StoreError(
                        f"store: shard {path} has {field} {value}, but {reference[0]} has "
                        f"{expected}; the shards of a store must agree"
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
        above, _, name = source.rpartition("/")
        home = os.path.expanduser((above if name == NAME else source) or ".")
        path = join_path(home, NAME)
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
            raise damaged(f"{path} is damaged ({error})") from None
        return cls(records, home)


def _leads_out(home: str, path: str) -> bool:
    """Whether a shard's path is outside the list's folder, by its name or through a link."""
    parts = path.replace("\\", "/").split("/")
    if not path or ".." in parts or os.path.isabs(path) or "://" in path:
        return True
    folder = Path(without_scheme(home))
    return is_local(home) and leads_out(folder, folder / path)


def is_local(path: str) -> bool:
    """Whether a path is a local folder, as opposed to an address for fsspec."""
    return "://" not in path or path.startswith("file://")


def join_path(base: str, name: str) -> str:
    """Join a name to a folder or address; an absolute path or an address is unchanged."""
    if "://" in name or os.path.isabs(name):
        return name
    if is_local(base):
        return str(Path(without_scheme(base)) / name)
    outer, chain, rest = base.partition("::")
    address = outer + name if outer.endswith("://") else outer.rstrip("/") + "/" + name
    return address + chain + rest


def without_scheme(path: str) -> str:
    """A local path without ``file://``."""
    return path.removeprefix("file://")


def local_folder(path: str) -> Path:
    """The shard's folder on this machine.

    The first use of an address (s3://, gs://, https://, zip://...::...) copies the shard to the
    cache folder ($GOLDDIFF_CACHE) and verifies its checksums. The copy is named by its contents.
    """
    if is_local(path):
        return Path(without_scheme(path))
    text = _read_text(join_path(path, MANIFEST))
    folder = cache_folder() / "shards" / hashlib.sha256(text.encode()).hexdigest()[:24]
    if folder.is_dir():
        return folder
    try:
        with folder_in_place("store", folder, f"store: another process copies {path}") as partial:
            (partial / MANIFEST).write_text(text, encoding="utf-8")
            files, root = _file_system(path)
            for name in Manifest.read(partial).files:
                files.get_file(f"{root.rstrip('/')}/{name}", str(partial / name))
            ImageStore.open(partial).verify()
    except BusyError:
        wait_for_builder(folder)
        return local_folder(path)
    except StoreError:
        raise
    except (OSError, KeyError, ValueError, ImportError) as error:
        raise _unreadable(path, error) from error
    return folder


def _read_text(path: str) -> str:
    try:
        files, root = _file_system(path)
        return bytes(files.cat_file(root)).decode("utf-8")
    except (OSError, KeyError, ValueError, ImportError) as error:
        raise _unreadable(path, error) from error


def _file_system(path: str) -> tuple[Any, str]:
    import fsspec  # a requirement of datasets

    files, root = fsspec.core.url_to_fs(path)
    return files, str(root)


def _unreadable(path: str, error: Exception) -> StoreError:
    if isinstance(error, FileNotFoundError | KeyError):
        return StoreError(f"store: {path} is not there")
    return StoreError(f"store: {path} cannot be read ({error})")
