"""Building an index: one pass over the pixels.

What is resident is a few pieces, whatever the number of images.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from golddiff.store.images import ImageStore
from golddiff.store.manifest import file_record
from golddiff.supports.index import blocks
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_disk
from golddiff.system.folders import folder_in_place
from golddiff.system.numbers import F32

FOLDER = "index"
MANIFEST, FORMAT, VERSION = "index.json", "golddiff-index", 4
NUMBERS, LENGTHS, TENSORS = "numbers.bin", "lengths.bin", "blocks.safetensors"
SAMPLE = 8192  # images that blocks are fitted to
SAMPLE_BYTES = 2e9  # that fitting may take: fewer images where they are large
PIECE = 64e6  # bytes of pixels as float32 that are worked on at once

Progress = Callable[[str, int, int], None]


def no_progress(what: str, done: int, total: int) -> None:
    """Show nothing."""


def file_sizes(store: ImageStore) -> dict[str, int]:
    """What the two large files must have, in bytes."""
    return {NUMBERS: store.n * blocks.numbers_of(store.shape), LENGTHS: store.n * 8}


def build(store: ImageStore, progress: Progress = no_progress) -> None:
    """Build the index of a store in its folder.

    ``progress`` is called with what is done, how far, and of how many.

    Raises:
        ArgumentError: a store in shards.
        StoreError: another process builds it; it cannot be written, or the disk is too small.
    """
    if not isinstance(store, ImageStore):
        raise ArgumentError(
            "store: an index is of a single store (golddiff.ImageStore), not of one in shards"
        )
    busy = f"index: another process is building that of {store.path}"
    with folder_in_place("index", store.path / FOLDER, busy) as part:
        check_disk("index", store.path, sum(file_sizes(store).values()))
        _fill(store, part, progress)


def identity(store: ImageStore) -> str:
    """What an index must be of: the checksum of the pixels."""
    return store.manifest.files["pixels.bin"].sha256


def _fill(store: ImageStore, part: Path, progress: Progress) -> None:
    """Write what is kept of every image, in store order, and at last the manifest."""
    count = min(SAMPLE, max(1, int(SAMPLE_BYTES / (12 * store.d))))
    rows = np.sort(np.random.default_rng(0).permutation(store.n)[:count])
    made = blocks.fitted(store.shape, store.values(rows))
    # A file that the library writes itself is for its owner's eyes alone.
    (part / TENSORS).write_bytes(save(made.tensors()))
    piece = max(1, min(store.n, int(PIECE / (4 * store.d))))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((part / name).open("wb")) for name in (NUMBERS, LENGTHS)]
        pixels = stack.enter_context((store.path / "pixels.bin").open("rb", buffering=0))
        for first in range(0, store.n, piece):
            values = _read(pixels, store, min(piece, store.n - first))
            for file, array in zip(files, made.kept(values), strict=True):
                file.write(np.ascontiguousarray(array).data)
            progress("reading pixels", first + len(values), store.n)
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    body = {
        "format": FORMAT,
        "version": VERSION,
        "store": identity(store),
        "n": store.n,
        "files": {name: vars(file_record(part / name)) for name in (NUMBERS, LENGTHS, TENSORS)},
    }
    (part / MANIFEST).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def _read(pixels: Any, store: ImageStore, count: int) -> F32:
    """The next images, (n, D), by plain reading: a mapping's pages would count as resident."""
    stored = np.fromfile(pixels, store.flat.dtype, count * store.d).reshape(count, store.d)
    return store.stored.scaled(stored.astype(np.float32))
