"""Stores built automatically in a cache folder, once for each source and its options."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from golddiff.sources.source_options import SourceOptions, source_options
from golddiff.store.manifest import NAME, VERSION, Manifest
from golddiff.system.errors import ArgumentError, BusyError, SourceError, StoreError
from golddiff.system.folders import is_abandoned, wait_for_builder
from golddiff.system.progress import waiting
from golddiff.system.units import counted

if TYPE_CHECKING:
    from golddiff.store.images import ImageStore

# Folders of the cache that are not stores, with the descriptions that users see.
OTHERS = {
    "oracle-runs": "runs of oracles from starting noise",
    "truth": "full scans that version 0.1 kept",
    "cluster": "results computed from shards without a local folder",
    "shards": "copies of remote shards",
    "scaling": "stores and times of golddiff bench",
}

REREAD = 16  # images of a Python object that are read twice, to notice random transforms
_CLUSTER = re.compile(r"^cluster-[0-9a-f]{16}$")


def load(source: Any, labels: Any = None, *, progress: bool = True, **options: Any) -> ImageStore:
    """Open the cached store of a training set, building it on first use; open a store as it is.

    Files are identified by name, size and modification time, Python objects by their contents and
    the file names of their images.

    Args:
        source: any source of :func:`golddiff.sources.open_source`.
        labels: (N,) class indices >= 0 that replace the source's own.
        progress: show a bar while building, on a terminal, or in a notebook with ipywidgets.
        options: ``size``, ``channels``, ``limit`` ... of
            :class:`golddiff.sources.source_options.SourceOptions`.

    Raises:
        ArgumentError: an option has a value that is not allowed or does not apply.
        SourceError: the source cannot be read, or gives other images each time.
        StoreError: the cache is not writable, or ``source`` is a damaged store.
    """
    if isinstance(source, os.PathLike):
        source = os.path.abspath(os.path.expanduser(source))
    return cached_store(source, source_options(labels=labels, **options), progress=progress)


def cached_store(
    source: Any,
    options: SourceOptions,
    *,
    say: Callable[[str], None] = lambda line: None,
    progress: bool = False,
    needed: Callable[[int, int], float] | None = None,
) -> ImageStore:
    """Open the cached store of a source, building it if it is missing or damaged.

    A path that is a store is opened itself, if the options leave it as it is. A store that another
    process builds is waited for, at most four hours; then this raises BusyError.

    ``say`` receives lines that report which store is built or used. ``needed(n, d)`` is the memory
    in bytes for later work on n images of d values; it is checked before building.
    """
    from golddiff.store.build import build
    from golddiff.store.images import ImageStore
    from golddiff.store.needs import check_images
    from golddiff.store.opening import is_store, open_source

    if isinstance(source, str) and is_path(source) and is_store(_local(source)):
        store = ImageStore.open(_local(source))
        own = options.beyond(store.shape)
        if own.labels is None and replace(own, skip_bad=False) == SourceOptions():
            return store
    path = cache_folder() / cache_name(source, options, progress)
    try:
        store = ImageStore.open(path)
        left_out = store.manifest.skipped
        if left_out and not options.skip_bad:
            raise StoreError(f"{path}: images were left out")  # reading again names the first one
        note = f" ({counted(left_out, 'unreadable image')} left out)" if left_out else ""
        say(f"using the store of {_shown(source)}, {store.n:,} images{note}, in {path}")
        return store
    except StoreError:
        # A store that exists but does not open is damaged, and is replaced.
        damaged = (path / "manifest.json").is_file()
    opened = open_source(source, **vars(options))
    if needed is not None:
        check_images(opened.total, opened.info.shape, needed, "the covariance and masks of")
    say(f"building a store of {_shown(source)}, {opened.total:,} images, in {path}")
    try:
        build(opened, path, overwrite=damaged, progress=progress)
    except BusyError:
        say("another process is building it already; waiting for that (Ctrl-C stops waiting)")
        with waiting("waiting for another process to build the store", progress):
            wait_for_builder(path)
        return cached_store(source, options, say=say, progress=progress, needed=needed)
    except ArgumentError:
        if not is_store(path):  # otherwise another process has built it meanwhile
            raise
    for line in opened.skipped.lines():
        say(line)
    return ImageStore.open(path)


def _local(source: str) -> Path:
    return Path(os.path.expanduser(source))  # pathlib's raises where there is no home


def cache_folder() -> Path:
    """$GOLDDIFF_CACHE, or ~/.cache/golddiff."""
    chosen = os.path.expanduser(os.environ.get("GOLDDIFF_CACHE") or "~/.cache/golddiff")
    if chosen.startswith("~"):
        raise StoreError(f"cache: {chosen} is in no known home; set GOLDDIFF_CACHE to a folder")
    if os.path.isfile(chosen):
        raise StoreError(f"cache: GOLDDIFF_CACHE is the file {chosen}; set it to a folder")
    return Path(chosen)


@dataclass(frozen=True)
class Entry:
    """One folder of the cache."""

    path: Path
    what: str  # description of its contents
    bytes: int  # total size of its files
    used: float  # modification time of its newest file, in seconds since the epoch


def entries() -> list[Entry]:
    """The folders of the cache that golddiff made, largest first."""
    from golddiff.store.opening import is_store

    folders, cache = [], cache_folder()
    for path in cache.iterdir() if cache.is_dir() else ():
        what = OTHERS.get("cluster" if _CLUSTER.match(path.name) else path.name)
        if is_abandoned(path):
            what = "unfinished store of a run that was killed"
        if path.is_symlink() or not (what or is_store(path)):
            continue
        stats = list(_stats(path))
        used = max((stat.st_mtime for stat in stats), default=path.stat().st_mtime)
        size = sum(stat.st_size for stat in stats)
        folders.append(Entry(path, what or _describe(path), size, used))
    return sorted(folders, key=lambda entry: (-entry.bytes, entry.path.name))


def _stats(path: Path) -> Iterator[os.stat_result]:
    """The status of each file in a folder, some of which may be deleted meanwhile."""
    for folder, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                yield os.lstat(os.path.join(folder, name))


def _describe(path: Path) -> str:
    try:
        return f"store of {Manifest.read(path).source}"
    except StoreError:
        return "store that is damaged, or of another version"


def cache_name(source: Any, options: SourceOptions, progress: bool = False) -> str:
    """The folder name for a source; it changes with the source, the options or the format."""
    if not isinstance(source, str):
        contents = _contents(source, options, progress)
        identity = {"version": VERSION, "contents": contents, **options.saved()}
        return _folder_name(type(source).__name__, identity)
    path = _local(source)
    identity = {
        "version": VERSION,
        # A name that is not a local path is a built-in or a hub dataset, with no files to check.
        "source": str(path.resolve()) if is_path(source) else source,
        "files": fingerprint(path) if is_path(source) else None,
        # The images are the same with and without skip_bad, unless some cannot be read.
        **recorded(replace(options, skip_bad=True)),
    }
    return _folder_name(path.name, identity)


def recorded(options: SourceOptions) -> dict[str, Any]:
    """The options as files record them, with a digest in place of given labels."""
    from golddiff.sources.source import check_labels

    fields = options.saved()
    if options.labels is not None:
        labels = check_labels(options.labels).tolist()
        fields["labels"] = hashlib.sha256(repr(labels).encode()).hexdigest()
    return fields


def _folder_name(name: str, identity: dict[str, Any]) -> str:
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "store"
    return f"{slug}-{digest[:16]}"


def _shown(source: Any) -> str:
    return source if isinstance(source, str) else f"a {type(source).__name__}"


def _contents(source: Any, options: SourceOptions, progress: bool) -> str:
    """A digest of all images, labels and file names of a Python object."""
    from golddiff.store.opening import open_source

    opened = open_source(source, **vars(options))
    first, again = (next(opened.batches(REREAD)).pixels.tobytes() for _ in range(2))
    if first != again:
        raise SourceError(
            f"{opened.info.description} differ each time they are read; leave out random "
            "transforms and shuffling, or keep one reading of them with golddiff.ImageStore.build"
        )
    digest = hashlib.sha256(repr(opened.info).encode())
    done = 0
    with waiting(f"looking for {opened.info.description} in the cache", progress) as watch:
        for pixels, labels in opened.batches(512):
            digest.update(pixels.data)
            digest.update(b"" if labels is None else labels.data)
            watch(done := done + len(pixels), opened.total)
    digest.update(repr(opened.names).encode() if opened.names else b"")
    return digest.hexdigest()


def is_path(source: str) -> bool:
    """Whether a source is an existing file or folder; the names of built-ins take precedence."""
    from golddiff.sources import BUILTINS

    return bool(source) and source not in BUILTINS and _local(source).exists()


def fingerprint(path: Path) -> str:
    """A digest of the name, size and modification time of every non-hidden file of a source."""
    from golddiff.sources.folders import files_below
    from golddiff.store.opening import is_store

    if is_store(path):
        files = [path / NAME]  # it holds checksums of the images; artifacts are added later
    elif path.is_dir():
        files = sorted(path / name for name in files_below(path)[0])
    else:
        # MNIST keeps its labels in a separate file next to the images.
        files = [path, *sorted(filter(Path.is_file, path.parent.glob("*idx1-ubyte*")))]
    digest = hashlib.sha256()
    for file in files:
        stat = file.stat()
        name = os.path.relpath(file, path.parent)
        digest.update(os.fsencode(f"{name}\0{stat.st_size}\0{stat.st_mtime_ns}\n"))
    return digest.hexdigest()
