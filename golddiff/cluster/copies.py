"""A shard's folder on this machine: where it lies, or copied once from an object store."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from golddiff.store.cache import cache_folder
from golddiff.store.images import ImageStore
from golddiff.store.manifest import NAME, Manifest
from golddiff.system.errors import StoreError


def is_local(path: str) -> bool:
    """Whether a path is a folder's, and no address that fsspec reads."""
    return "://" not in path or path.startswith("file://")


def joined(base: str, name: str) -> str:
    """A name below a folder or an address; an absolute name or an address stays as it is."""
    if "://" in name or os.path.isabs(name):
        return name
    if is_local(base):
        return str(Path(without_scheme(base)) / name)
    first, rest = base.split("::", 1) if "::" in base else (base, "")
    made = first + name if first.endswith("://") else first.rstrip("/") + "/" + name
    return f"{made}::{rest}" if rest else made


def without_scheme(path: str) -> str:
    """A local path without ``file://``."""
    return path.removeprefix("file://")


def read_text(path: str) -> str:
    """A small text file, local or not."""
    try:
        files, root = _file_system(path)
        return bytes(files.cat_file(root)).decode("utf-8")
    except (OSError, KeyError, ValueError) as error:
        raise _unreadable(path, error) from error


def local_folder(path: str) -> Path:
    """The shard's folder on this machine.

    An address (s3://, gs://, https://, zip://...::...) is copied whole to the cache folder
    ($GOLDDIFF_CACHE) at first use, its checksums are verified, and it is found there afterwards
    under a name that changes with its contents.
    """
    if is_local(path):
        return Path(without_scheme(path))
    text = read_text(joined(path, NAME))
    place = cache_folder() / "shards" / hashlib.sha256(text.encode()).hexdigest()[:24]
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        (partial / NAME).write_text(text, encoding="utf-8")
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
