"""Building an index: one pass over the pixels, then each location's images put by cluster.

It is built beside its place and can be interrupted anywhere: the next build goes on from the last
piece that was on disk. What is resident is a few pieces, whatever the number of images.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from golddiff.errors import ArgumentError, StoreError
from golddiff.index import blocks, clusters
from golddiff.index.blocks import Blocks
from golddiff.index.fitting import SAMPLE, Fitted, fitted
from golddiff.index.interrupted import STATE, Views, resumed, save_state
from golddiff.index.layout import (
    FOLDER,
    FORMAT,
    MANIFEST,
    PARTIAL,
    VERSION,
    Arrays,
    Column,
    columns_of_files,
    tensors_name,
)
from golddiff.index.passing import seen
from golddiff.index.rawfiles import opened, read_location, write_images, write_location
from golddiff.index.screen import NAME as SCREEN
from golddiff.index.screen import TENSORS as SCREEN_TENSORS
from golddiff.index.screen import shape_of
from golddiff.index.views import View, views_of
from golddiff.store.images import ImageStore
from golddiff.store.manifest import file_record
from golddiff.system.files import DISK_FULL, system_errors, written_whole
from golddiff.system.locks import exchanged, locked
from golddiff.system.units import byte_size

PIECE = 64e6  # bytes of pixels as float32 that are worked on at once
SAVED_EVERY = 16  # pieces

Progress = Callable[[str, int, int], None]


def build(
    store: ImageStore,
    *,
    memory_limit: float = 2e9,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Build the index of a store, or go on with one that was interrupted; its folder.

    Args:
        store: the training set; the index lies in its folder.
        memory_limit: bytes that may be resident for it.
        progress: called with what is done, how far, and of how many.

    Raises:
        ArgumentError: ``memory_limit`` is too small for one piece; a store in shards.
        StoreError: the folder cannot be written, or the disk is full.
    """
    if not isinstance(store, ImageStore):
        raise ArgumentError(
            "store: an index is of a single store (golddiff.ImageStore), not of one in shards"
        )
    _check_memory(store, memory_limit)
    part = store.path / PARTIAL
    try:
        busy = f"index: another process is building that of {store.path}"
        with locked(store.path / ".index.lock", busy):
            views, screen, state = resumed(store, part, identity(store)) or _begun(store, part)
            _check_space(store, views, part)
            _pass(store, views, screen, part, state, progress)
            tensors = _by_cluster(store, views, part, state, progress)
            _finish(store, views, tensors, part)
    except OSError as error:
        raise _unwritable(store, error) from error
    return store.path / FOLDER


def identity(store: ImageStore) -> str:
    """What an index must be of: the checksum of the pixels."""
    return store.manifest.files["pixels.bin"].sha256


def _begun(store: ImageStore, part: Path) -> tuple[Views, Blocks, dict[str, Any]]:
    """The views and blocks, fitted now, and the state of a build that has nothing yet."""
    if part.is_symlink():
        part.unlink()
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    views = views_of(store.shape)
    rows = np.sort(np.random.default_rng(0).permutation(store.n)[:SAMPLE])
    sample = store.values(rows)
    made = [(view, fitted(view, store, sample)) for view in views]
    for view, fit in made:
        with system_errors(part / tensors_name(view)):
            save_file(vars(fit), part / tensors_name(view))
    screen = blocks.fitted(store.shape, sample)
    with system_errors(part / SCREEN_TENSORS):
        save_file(screen.tensors(), part / SCREEN_TENSORS)
    state: dict[str, Any] = {
        "store": identity(store),
        "version": VERSION,
        "rows": 0,
        "placed": {},
    }
    save_state(part, state)
    return made, screen, state


def _pass(
    store: ImageStore,
    views: Views,
    screen: Blocks,
    part: Path,
    state: dict[str, Any],
    progress: Progress,
) -> None:
    """Write what every location sees of every image, and every image's blocks, in store order."""
    piece, by_image = _piece(store), _screen_column(store)
    with contextlib.ExitStack() as stack:
        files = {
            column.name: stack.enter_context(opened(part, column))
            for view, fit in views
            for column in _raw_columns(view, fit, store.n).values()
        }
        files[SCREEN] = stack.enter_context(opened(part, by_image))
        pixels = stack.enter_context((store.path / "pixels.bin").open("rb", buffering=0))
        start = int(state["rows"])
        pixels.seek(start * store.d * store.flat.itemsize)
        for count, first in enumerate(range(start, store.n, piece), 1):
            values = _read(pixels, store, min(piece, store.n - first))
            write_images(files[SCREEN], by_image, screen.seen(values)[None], first)
            for view, fit in views:
                look = seen(fit, values)
                for name, column in _raw_columns(view, fit, store.n).items():
                    write_images(files[column.name], column, getattr(look, name), first)
            done = first + values.shape[1]
            last = done == store.n
            if last or count % SAVED_EVERY == 0:
                for file in files.values():
                    os.fsync(file)
                state["rows"] = done
                save_state(part, state)
            progress("reading pixels", done, store.n)


def _by_cluster(
    store: ImageStore, views: Views, part: Path, state: dict[str, Any], progress: Progress
) -> dict[str, Arrays]:
    """Put each location's images by cluster, at random within one; the clusters' own numbers."""
    total = sum(fit.tiles for _, fit in views)
    done = 0
    tensors: dict[str, Arrays] = {}
    for view, fit in views:
        raw, columns = _raw_columns(view, fit, store.n), columns_of_files(view, fit, store.n)
        sums = clusters.empty(fit)
        with contextlib.ExitStack() as stack:
            sources = {name: stack.enter_context(opened(part, c)) for name, c in raw.items()}
            targets = {name: stack.enter_context(opened(part, c)) for name, c in columns.items()}
            for t in range(fit.tiles):
                lines = {name: read_location(sources[name], raw[name], t) for name in raw}
                if int(lines["cluster"].max()) >= fit.centres.shape[1]:
                    shutil.rmtree(part, ignore_errors=True)
                    raise StoreError(
                        f"index: what was done of the index of {store.path} is damaged and was "
                        "removed; build it again"
                    )
                order = clusters.order(lines["cluster"], t)
                clusters.summarise(fit, lines, t, sums)
                if t >= state["placed"].get(view.name, 0):
                    write_location(targets["rows"], columns["rows"], order.astype(np.uint32), t)
                    for name in ("coordinates", "rest"):
                        write_location(targets[name], columns[name], lines[name][order], t)
                    os.fsync(targets["coordinates"])
                    os.fsync(targets["rest"])
                    os.fsync(targets["rows"])
                    state["placed"][view.name] = t + 1
                    save_state(part, state)
                done += 1
                progress("sorting", done, total)
        tensors[view.name] = {
            **{f"fit_{name}": array for name, array in vars(fit).items() if name != "centres"},
            **{f"cluster_{name}": array for name, array in sums.items()},
        }
    return tensors


def _finish(store: ImageStore, views: Views, tensors: dict[str, Arrays], part: Path) -> None:
    """Write what is small, then the manifest, and put the folder in its place."""
    files = {}
    # First: killed from here on, the next build begins anew. What it would go on from is removed.
    (part / STATE).unlink()
    for view, fit in views:
        for column in columns_of_files(view, fit, store.n).values():
            files[column.name] = vars(file_record(part / column.name))
        for column in _raw_columns(view, fit, store.n).values():
            (part / column.name).unlink()
        name = tensors_name(view)
        with written_whole("index", part / name) as path:
            save_file(tensors[view.name], path)
        files[name] = vars(file_record(part / name))
    for name in (SCREEN, SCREEN_TENSORS):
        files[name] = vars(file_record(part / name))
    body = {
        "format": FORMAT,
        "version": VERSION,
        "store": identity(store),
        "n": store.n,
        "views": [view.name for view, _ in views],
        "files": files,
    }
    with written_whole("index", part / MANIFEST) as path:
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    _put_in_place(part, store.path / FOLDER)


def _put_in_place(part: Path, place: Path) -> None:
    """Killed anywhere in between, the old index opens, or the new one, or there is none."""
    if place.exists() and exchanged(part, place):
        shutil.rmtree(part, ignore_errors=True)  # the old one
        return
    (place / MANIFEST).unlink(missing_ok=True)  # first: without it nothing that is left opens
    shutil.rmtree(place, ignore_errors=True)
    os.rename(part, place)


def _raw_columns(view: View, fit: Fitted, n: int) -> dict[str, Column]:
    """The files of the pass, in store order."""
    kept = columns_of_files(view, fit, n)
    return {
        "coordinates": Column(f"{view.name}-seen.raw", "int8", kept["coordinates"].shape),
        "rest": Column(f"{view.name}-rest.raw", "float16", kept["rest"].shape),
        "cluster": Column(f"{view.name}-cluster.raw", "uint16", kept["rest"].shape),
        "error": Column(f"{view.name}-error.raw", "float16", kept["rest"].shape),
    }


def _screen_column(store: ImageStore) -> Column:
    """The blocks' file; it has no locations, so that an image's numbers lie together."""
    return Column(SCREEN, "int8", (1, *shape_of(store)))


def _read(pixels: Any, store: ImageStore, count: int) -> NDArray[np.float32]:
    """The next images, (D, n), by plain reading: a mapping's pages would count as resident."""
    stored = np.fromfile(pixels, store.flat.dtype, count * store.d).reshape(count, store.d)
    turned: NDArray[np.float32] = torch.from_numpy(stored).T.contiguous().to(torch.float32).numpy()
    if store.is_pixels:
        turned *= np.float32(store.scale)
        turned += np.float32(store.offset)
    return turned


def _piece(store: ImageStore) -> int:
    return max(1, min(store.n, int(PIECE / (4 * store.d))))


def _check_memory(store: ImageStore, limit: float) -> None:
    if not (isinstance(limit, int | float) and limit > 0):
        raise ArgumentError(f"memory_limit: got {limit!r}, expected bytes above 0")
    sample = 12 * min(SAMPLE, store.n) * store.d
    line = store.n * 6 * max(view.coordinates for view in views_of(store.shape))
    needed = int(max(sample, 4 * PIECE, line * 2))
    if needed > limit:
        raise ArgumentError(
            f"memory_limit: got {byte_size(int(limit))}, but an index of {store.n:,} images of "
            f"{store.d:,} values needs {byte_size(needed)}"
        )


def _check_space(store: ImageStore, views: Views, part: Path) -> None:
    columns = [_screen_column(store)]
    for view, fit in views:
        columns += _raw_columns(view, fit, store.n).values()
        columns += columns_of_files(view, fit, store.n).values()
    needed = 0
    for column in columns:
        there = part / column.name
        needed += column.bytes - (512 * there.stat().st_blocks if there.exists() else 0)
    free = shutil.disk_usage(part).free
    if needed > free:
        raise StoreError(
            f"index: {store.path} needs about {needed / 1e9:.2f} GB more, the disk has "
            f"{free / 1e9:.2f} GB free"
        )


def _unwritable(store: ImageStore, error: OSError) -> StoreError:
    if error.errno in DISK_FULL:
        return StoreError(
            f"index: the disk is full; what is done of the index of {store.path} is kept, and "
            "the next build goes on"
        )
    return StoreError(f"index: {store.path} cannot be written ({error.strerror or error})")
