"""An index on disk, opened and checked."""

from __future__ import annotations

import json
import logging
import math
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file

from golddiff.errors import StoreError
from golddiff.index.blocks import of_tensors
from golddiff.index.build import Progress, build, identity
from golddiff.index.fitting import Fitted, check_fitted
from golddiff.index.layout import (
    FOLDER,
    FORMAT,
    MANIFEST,
    VERSION,
    columns_of_files,
    files_of,
    tensors_name,
)
from golddiff.index.rawfiles import Lines
from golddiff.index.screen import NAME as SCREEN
from golddiff.index.screen import TENSORS as SCREEN_TENSORS
from golddiff.index.screen import Screen, shape_of
from golddiff.index.sweep import Sweep, bytes_of
from golddiff.index.views import View, views_of
from golddiff.store.images import ImageStore
from golddiff.store.manifest import FileRecord, file_record
from golddiff.system.files import leads_out

log = logging.getLogger("golddiff")


@dataclass(frozen=True)
class Clusters:
    """A view's clusters; see :func:`golddiff.index.clusters.empty`."""

    starts: NDArray[np.int64]
    centres: NDArray[np.float32]
    spread: NDArray[np.float32]
    rest: NDArray[np.float32]
    radius: NDArray[np.float32]
    error: NDArray[np.float32]
    shortest: NDArray[np.float32]
    longest: NDArray[np.float32]


@dataclass(frozen=True)
class Locations:
    """A view of all images: what its locations compare, by cluster.

    Attributes:
        view: which.
        fit: bases and scales; its ``centres`` are those of ``clusters``.
        clusters: of each location.
        rows: (T, N) uint32 images by cluster, read from the file run by run.
        coordinates: (T, N, r) int8, in that order.
        rest: (T, N) float16, in that order.
    """

    view: View
    fit: Fitted
    clusters: Clusters
    rows: Lines
    coordinates: Lines
    rest: Lines


@dataclass(frozen=True)
class Index:
    """The index of a store; :meth:`open` it or :meth:`build` it.

    Attributes:
        store: the training set.
        views: by the side of their tiles, None for the whole image.
        screen: compares whole images more finely.
    """

    store: ImageStore
    views: dict[int | None, Locations]
    screen: Screen

    @cached_property
    def sweep(self) -> Sweep | None:
        """The whole image's coordinates, in memory; None where the store's limit leaves no room."""
        whole = self.views[None]
        fit = whole.fit

        def make() -> Sweep:
            return Sweep(whole.coordinates, whole.rows, fit.basis[0], fit.mean[0], fit.scale[0])

        return self.store.residency.in_memory(bytes_of(self.store.n, fit.basis.shape[1]), make)

    @classmethod
    def open(cls, store: ImageStore) -> Index:
        """Open the index in a store's folder; format, store, sizes and ranges are checked.

        Raises:
            StoreError: none is there, it is damaged, of another format version or of another store.
        """
        folder = store.path / FOLDER
        body = _manifest(folder)
        if body["version"] != VERSION:
            raise StoreError(
                f"index: {folder} has format version {body['version']!r}, this golddiff reads "
                f"version {VERSION}; build the index again"
            )
        if body["store"] != identity(store) or body["n"] != store.n:
            raise StoreError(f"index: {folder} is of another store; build the index again")
        views = views_of(store.shape)
        needed = {SCREEN, SCREEN_TENSORS, *(f for v in views for f in files_of(v))}
        if missing := sorted(needed - body["files"].keys()):
            raise StoreError(
                f"index: {folder / MANIFEST} is damaged (it lacks {', '.join(missing)}); "
                "build the index again"
            )
        for name, record in body["files"].items():
            path = folder / name
            if leads_out(store.path, path):
                raise StoreError(
                    f"index: {path} is a symbolic link that leads out of the store; copy the file"
                )
            if not path.is_file() or path.stat().st_size != record["bytes"]:
                raise StoreError(
                    f"index: {path} is missing or has another size than {record['bytes']} bytes; "
                    "build the index again"
                )
        locations = {view.side: _locations(store, view, folder) for view in views}
        return cls(store, locations, _screen(store, folder))

    @classmethod
    def build(
        cls,
        store: ImageStore,
        *,
        memory_limit: float = 2e9,
        progress: Progress = lambda what, done, total: None,
    ) -> Index:
        """Build the index of a store in its folder and open it; see :mod:`golddiff.index.build`.

        Raises:
            ArgumentError: ``memory_limit`` is too small.
            StoreError: the folder cannot be written.
        """
        build(store, memory_limit=memory_limit, progress=progress)
        return cls.open(store)

    def verify(self) -> None:
        """Recompute every checksum.

        Raises:
            StoreError: names the first file whose contents changed.
        """
        folder = self.store.path / FOLDER
        for name, record in _manifest(folder)["files"].items():
            if file_record(folder / name) != FileRecord(**record):
                raise StoreError(
                    f"index: {folder / name} does not match its checksum; build the index again"
                )


def open_or_build(store: ImageStore) -> Index:
    """The index of a store; built where there is none, or none that is sound and of the store.

    Raises:
        StoreError: it cannot be built.
    """
    try:
        return Index.open(store)
    except StoreError as error:
        log.warning("%s: building it now, once", error)
        return Index.build(store)


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not path.is_file() or leads_out(folder.parent, path):
        raise StoreError(f"index: {folder} holds no {MANIFEST}, so there is no complete index")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise ValueError("of another format")
        for name, record in body["files"].items():
            FileRecord(**record)
            if Path(name).name != name:
                raise ValueError(f"a file outside its folder: {name}")
        return {k: body[k] for k in ("version", "store", "n", "views", "files")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"index: {path} is damaged ({error}); build the index again") from None


def _screen(store: ImageStore, folder: Path) -> Screen:
    path, tensors = folder / SCREEN, folder / SCREEN_TENSORS
    if not path.is_file() or path.stat().st_size != math.prod(shape_of(store)):
        raise StoreError(f"index: {path} is damaged; build the index again")
    try:
        blocks = of_tensors(store.shape, load_file(tensors))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise StoreError(
            f"index: {tensors} is damaged ({problem}); build the index again"
        ) from None
    return Screen(store, path, blocks)


def _locations(store: ImageStore, view: View, folder: Path) -> Locations:
    path = folder / tensors_name(view)
    try:
        tensors = load_file(path)
        fit = Fitted(
            centres=tensors["cluster_centres"],
            **{name: tensors[f"fit_{name}"] for name in ("columns", "mean", "basis", "scale")},
        )
        clusters = Clusters(
            **{name: tensors[f"cluster_{name}"] for name in (f.name for f in fields(Clusters))}
        )
        _check(store, view, fit, clusters)
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
        raise StoreError(f"index: {path} is damaged ({problem}); build the index again") from None
    columns = columns_of_files(view, fit, store.n)
    return Locations(
        view, fit, clusters, **{name: Lines(folder, column) for name, column in columns.items()}
    )


def _check(store: ImageStore, view: View, fit: Fitted, clusters: Clusters) -> None:
    """Raise ValueError where compiled code would read outside an array."""
    check_fitted(fit, view, store.shape)
    t, r, c = fit.tiles, fit.basis.shape[1], fit.centres.shape[1]
    expected: dict[str, tuple[NDArray[Any], tuple[int, ...], str]] = {
        "centres": (clusters.centres, (t, c, r), "float32"),
        "spread": (clusters.spread, (t, c, r), "float32"),
        "rest": (clusters.rest, (t, c), "float32"),
        "radius": (clusters.radius, (t, c), "float32"),
        "starts": (clusters.starts, (t, c + 1), "int64"),
        "error": (clusters.error, (t, c), "float32"),
        "shortest": (clusters.shortest, (t, c), "float32"),
        "longest": (clusters.longest, (t, c), "float32"),
    }
    for name, (array, shape, dtype) in expected.items():
        if array.shape != shape or array.dtype != dtype or not np.isfinite(array).all():
            raise ValueError(f"{name}: {array.dtype} of shape {array.shape}")
    starts = clusters.starts
    if (starts[:, 0] != 0).any() or (starts[:, -1] != store.n).any() or (np.diff(starts) < 0).any():
        raise ValueError("clusters that do not hold each image once")
