"""Building an index: one pass over the pixels.

It is built beside its place and can be interrupted anywhere: the next build goes on from the last
piece that was on disk. What is resident is a few pieces, whatever the number of images.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from golddiff.store.images import ImageStore
from golddiff.store.manifest import file_record
from golddiff.supports.index import blocks
from golddiff.supports.index.blocks import Blocks
from golddiff.system.errors import ArgumentError, StoreError
from golddiff.system.files import (
    DISK_FULL,
    check_disk,
    exchanged,
    locked,
    system_errors,
    written_whole,
)
from golddiff.system.numbers import F32
from golddiff.system.units import byte_size

FOLDER, PARTIAL = "index", "index.part"
MANIFEST, FORMAT, VERSION = "index.json", "golddiff-index", 4
NUMBERS, LENGTHS, TENSORS, STATE = "numbers.bin", "lengths.bin", "blocks.safetensors", "state.json"
SAMPLE = 8192  # images that blocks are fitted to
PIECE = 64e6  # bytes of pixels as float32 that are worked on at once
SAVED_EVERY = 16  # pieces

Progress = Callable[[str, int, int], None]


def file_sizes(store: ImageStore) -> dict[str, int]:
    """What the two large files must have, in bytes."""
    return {NUMBERS: store.n * blocks.numbers_of(store.shape), LENGTHS: store.n * 8}


def build(
    store: ImageStore,
    *,
    memory_limit: float = 2e9,
    progress: Progress = lambda what, done, total: None,
) -> Path:
    """Build the index of a store, or go on with one that was interrupted; its folder.

    ``progress`` is called with what is done, how far, and of how many.
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
            made, rows = _resumed(store, part) or _begun(store, part)
            _check_space(store, part)
            _pass(store, made, part, rows, progress)
            _finish(store, part)
    except OSError as error:
        raise _unwritable(store, error) from error
    return store.path / FOLDER


def identity(store: ImageStore) -> str:
    """What an index must be of: the checksum of the pixels."""
    return store.manifest.files["pixels.bin"].sha256


def _begun(store: ImageStore, part: Path) -> tuple[Blocks, int]:
    """The blocks, fitted now, of a build that has no images yet."""
    if part.is_symlink():
        part.unlink()
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    rows = np.sort(np.random.default_rng(0).permutation(store.n)[:SAMPLE])
    made = blocks.fitted(store.shape, store.values(rows))
    with system_errors(part / TENSORS):
        save_file(made.tensors(), part / TENSORS)
    _save_state(store, part, 0)
    return made, 0


def _resumed(store: ImageStore, part: Path) -> tuple[Blocks, int] | None:
    """The blocks and images of an interrupted build; None where there was none.

    It lies in the store's folder, which may have come from elsewhere.
    """
    try:
        if part.is_symlink() or any(path.is_symlink() for path in part.iterdir()):
            return None
        state: dict[str, Any] = json.loads((part / STATE).read_text(encoding="utf-8"))
        rows = state["rows"]
        if (state["store"], state["version"]) != (identity(store), VERSION):
            return None
        if type(rows) is not int or not 0 <= rows <= store.n:
            return None
        for name, size in file_sizes(store).items():
            if (part / name).stat().st_size < rows * (size // store.n):
                return None
        return blocks.of_tensors(store.shape, load_file(part / TENSORS)), rows
    except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError):
        return None


def _save_state(store: ImageStore, part: Path, rows: int) -> None:
    state = {"store": identity(store), "version": VERSION, "rows": rows}
    with written_whole("index", part / STATE) as path:
        path.write_text(json.dumps(state), encoding="utf-8")


def _pass(store: ImageStore, made: Blocks, part: Path, start: int, progress: Progress) -> None:
    """Write what is kept of every image, in store order."""
    piece = max(1, min(store.n, int(PIECE / (4 * store.d))))
    each = {NUMBERS: made.numbers, LENGTHS: 8}
    files = {name: _opened(part / name) for name in each}
    try:
        for name, file in files.items():
            file.truncate(start * each[name])  # what came after the last state is recomputed
            file.seek(start * each[name])
        with (store.path / "pixels.bin").open("rb", buffering=0) as pixels:
            pixels.seek(start * store.d * store.flat.itemsize)
            for count, first in enumerate(range(start, store.n, piece), 1):
                values = _read(pixels, store, min(piece, store.n - first))
                for file, array in zip(files.values(), made.kept(values), strict=True):
                    file.write(np.ascontiguousarray(array).data)
                done = first + len(values)
                if done == store.n or count % SAVED_EVERY == 0:
                    for file in files.values():
                        file.flush()
                        os.fsync(file.fileno())
                    _save_state(store, part, done)
                progress("reading pixels", done, store.n)
    finally:
        for file in files.values():
            file.close()


def _opened(path: Path) -> Any:
    return path.open("r+b" if path.exists() else "w+b")


def _finish(store: ImageStore, part: Path) -> None:
    """Write the manifest and put the folder in its place."""
    names = (NUMBERS, LENGTHS, TENSORS)
    body = {
        "format": FORMAT,
        "version": VERSION,
        "store": identity(store),
        "n": store.n,
        "files": {name: vars(file_record(part / name)) for name in names},
    }
    with written_whole("index", part / MANIFEST) as path:
        path.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    (part / STATE).unlink()
    place = store.path / FOLDER
    # Killed anywhere from here on, the old index opens, or the new one, or there is none.
    if place.exists() and exchanged(part, place):
        shutil.rmtree(part, ignore_errors=True)  # the old one
        return
    (place / MANIFEST).unlink(missing_ok=True)  # first: without it nothing that is left opens
    shutil.rmtree(place, ignore_errors=True)
    os.rename(part, place)


def _read(pixels: Any, store: ImageStore, count: int) -> F32:
    """The next images, (n, D), by plain reading: a mapping's pages would count as resident."""
    stored = np.fromfile(pixels, store.flat.dtype, count * store.d).reshape(count, store.d)
    return store.stored.scaled(stored.astype(np.float32))


def _check_memory(store: ImageStore, limit: float) -> None:
    if not (isinstance(limit, int | float) and limit > 0):
        raise ArgumentError(f"memory_limit: got {limit!r}, expected bytes above 0")
    needed = int(max(12 * min(SAMPLE, store.n) * store.d, 4 * PIECE))
    if needed > limit:
        raise ArgumentError(
            f"memory_limit: got {byte_size(int(limit))}, but an index of {store.n:,} images of "
            f"{store.d:,} values needs {byte_size(needed)}"
        )


def _check_space(store: ImageStore, part: Path) -> None:
    needed = 0
    for name, size in file_sizes(store).items():
        there = part / name
        needed += size - (there.stat().st_size if there.exists() else 0)
    check_disk("index", store.path, needed)


def _unwritable(store: ImageStore, error: OSError) -> StoreError:
    if error.errno in DISK_FULL:
        return StoreError(
            f"index: the disk is full; what is done of the index of {store.path} is kept, and "
            "the next build goes on"
        )
    return StoreError(f"index: {store.path} cannot be written ({error.strerror or error})")
