"""Stores of sources that were not indexed by hand: built once in a cache folder, then reused."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff.sources.source_options import SourceOptions
from golddiff.store.manifest import NAME, VERSION, Manifest
from golddiff.system.errors import StoreError

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

__all__ = ["SourceOptions", "cache_folder", "cache_name", "cached_store", "entries", "load"]

# Folders of the cache that are no stores.
OTHERS = {
    "oracle-runs": "what networks made of starting noise",
    "cluster": "what is computed from shards without a folder of their own",
    "shards": "copies of shards from other places",
    "truth": "full scans that errors are measured against",
    "scaling": "times of golddiff bench scaling, and its stores",
}

_CLUSTER = re.compile(r"^cluster-[0-9a-f]{16}$")


def load(source: Any, labels: Any = None, *, progress: bool = True, **options: Any) -> ImageStore:
    """The store of a training set, kept in the cache folder: built once, opened from then on.

    Files are known by name, size and time of change, what Python hands over by its contents.

    Args:
        source: as :func:`golddiff.sources.open_source` takes it.
        labels: (N,) class indices >= 0, in place of the source's own.
        progress: show a bar while building, on a terminal or in a notebook.
        options: ``size``, ``channels``, ``limit`` ... of
            :class:`golddiff.sources.source_options.SourceOptions`.

    Raises:
        ArgumentError: an option has a value that is not allowed or does not apply.
        SourceError: the source cannot be read.
        StoreError: the cache cannot be written.
    """
    if isinstance(source, os.PathLike):
        source = os.path.abspath(os.path.expanduser(source))
    return cached_store(source, SourceOptions(labels=labels, **options), progress=progress)


def cached_store(
    source: Any,
    options: SourceOptions,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = False,
    needed: Callable[[int, int], float] | None = None,
) -> ImageStore:
    """Open the cached store of a source, built first where there is none or it is damaged.

    ``say`` is told in a line whether a store is built or used, and where. ``needed`` gives the
    bytes that n images of d values take later: what is too much is refused before building.
    """
    from golddiff.store.build import build
    from golddiff.store.images import ImageStore
    from golddiff.store.needs import check_images
    from golddiff.store.opening import open_source

    path = cache_folder() / cache_name(source, options)
    try:
        store = ImageStore.open(path)
        left_out = store.manifest.skipped
        note = f" ({left_out:,} unreadable images were left out)" if left_out else ""
        say(f"using the store of {_shown(source)} in {path}{note}")
        return store
    except StoreError:
        # A folder that is there but does not open is damaged: its remains are replaced.
        complete = (path / "manifest.json").is_file()
    opened = open_source(source, **vars(options))
    if needed is not None:
        n = getattr(opened, "total", opened.info.count or 1)
        check_images(n, opened.info.shape, needed, "the covariance and masks of")
    say(f"building a store of {_shown(source)} in {path}")
    build(opened, path, overwrite=complete, progress=progress)
    for line in opened.skipped.lines():
        say(line)
    return ImageStore.open(path)


def cache_folder() -> Path:
    """$GOLDDIFF_CACHE, or ~/.cache/golddiff."""
    chosen = os.environ.get("GOLDDIFF_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "golddiff"


@dataclass(frozen=True)
class Entry:
    """A folder of the cache."""

    path: Path  # where it is
    what: str  # what it holds, in words
    bytes: int  # of all its files
    used: float  # seconds since the epoch, of its newest file


def entries() -> list[Entry]:
    """What the cache holds, the largest first; folders that golddiff did not make are left out."""
    from golddiff.store.opening import is_store

    found, folder = [], cache_folder()
    for path in folder.iterdir() if folder.is_dir() else ():
        what = OTHERS.get("cluster" if _CLUSTER.match(path.name) else path.name)
        if path.is_symlink() or not (what or is_store(path)):
            continue
        status = [file.lstat() for file in path.rglob("*") if not file.is_dir()]
        used = max((one.st_mtime for one in status), default=path.stat().st_mtime)
        found.append(Entry(path, what or _of_store(path), sum(one.st_size for one in status), used))
    return sorted(found, key=lambda entry: (-entry.bytes, entry.path.name))


def _of_store(path: Path) -> str:
    try:
        return f"store of {Manifest.read(path).source}"
    except StoreError:
        return "store that is damaged, or of another version"


def cache_name(source: Any, options: SourceOptions) -> str:
    """A folder name that changes whenever the source, the options or the store format do."""
    if not isinstance(source, str):
        contents = {"version": VERSION, "contents": _contents(source, options), **options.saved()}
        return _folder_name(type(source).__name__, contents)
    path = Path(source).expanduser()
    identity: dict[str, Any] = {
        "version": VERSION,
        # A name that is no path here is a built-in's or a hub dataset's: nothing local to read.
        "source": str(path.resolve()) if is_path(source) else source,
        "files": _fingerprint(path) if is_path(source) else None,
        **recorded(options),
    }
    return _folder_name(path.name, identity)


def recorded(options: SourceOptions) -> dict[str, Any]:
    """The options as files record them, and a digest of labels that were given."""
    made = options.saved()
    if options.labels is not None:
        made["labels"] = hashlib.sha256(repr(list(options.labels)).encode()).hexdigest()
    return made


def _folder_name(name: str, identity: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "store"
    return f"{slug}-{digest[:16]}"


def _shown(source: Any) -> str:
    return source if isinstance(source, str) else f"a {type(source).__name__}"


def _contents(source: Any, options: SourceOptions) -> str:
    """A digest of what Python hands over: of all its images and labels."""
    from golddiff.store.opening import open_source

    opened = open_source(source, **vars(options))
    digest = hashlib.sha256(repr(opened.info).encode())
    for pixels, labels in opened.batches(512):
        digest.update(pixels.data)
        digest.update(b"" if labels is None else labels.data)
    return digest.hexdigest()


def is_path(source: str) -> bool:
    """Whether a source is a file or folder that is there, and no built-in of that name."""
    from golddiff.sources import BUILTINS

    return source not in BUILTINS and Path(source).expanduser().exists()


def _fingerprint(path: Path) -> str:
    """A digest of the name, size and time of change of every file of a source, but hidden ones."""
    from golddiff.sources.folders import files_below
    from golddiff.store.opening import is_store

    if is_store(path):
        files = [path / NAME]  # the others are checked by it, or were kept there since
    elif path.is_dir():
        files = sorted(path / name for name in files_below(path)[0])
    else:
        # MNIST's labels lie in a file of their own beside the images.
        files = [path, *sorted(path.parent.glob("*idx1-ubyte*"))]
    digest = hashlib.sha256()
    for file in files:
        status = file.stat()
        name = os.path.relpath(file, path.parent)
        digest.update(os.fsencode(f"{name}\0{status.st_size}\0{status.st_mtime_ns}\n"))
    return digest.hexdigest()
