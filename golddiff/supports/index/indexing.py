"""Builds an index in one pass over the pixels, a few batches in memory at a time."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from golddiff.store.images import ImageStore
from golddiff.store.manifest import file_record
from golddiff.supports.index import blocks
from golddiff.system.errors import ArgumentError
from golddiff.system.files import check_disk
from golddiff.system.folders import folder_in_place
from golddiff.system.residency import parts

FOLDER = "index"
MANIFEST, FORMAT, VERSION = "index.json", "golddiff-index", 4
NUMBERS, LENGTHS, TENSORS = "numbers.bin", "lengths.bin", "blocks.safetensors"
SAMPLE = 8192  # images that the blocks are fitted to; fewer if fitting would exceed SAMPLE_BYTES
SAMPLE_BYTES = 2e9
PIECE = 64e6  # size of a batch of images as float32, in bytes

Progress = Callable[[str, int, int], None]


def no_progress(what: str, done: int, total: int) -> None:
    """A progress callback that does nothing."""


def file_sizes(store: ImageStore) -> dict[str, int]:
    """The sizes in bytes of the two large files."""
    return {NUMBERS: store.n * blocks.numbers_of(store.shape), LENGTHS: store.n * 8}


def build(store: ImageStore, progress: Progress = no_progress) -> None:
    """Build the index of a store in its folder.

    ``progress`` is called with a description of the work, the images done and their total.

    Raises:
        ArgumentError: the store is in shards.
        StoreError: another process builds the index, it cannot be written, or the disk is full.
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
    """The checksum of the store's pixels, which its index must match."""
    return store.manifest.files["pixels.bin"].sha256


def _fill(store: ImageStore, part: Path, progress: Progress) -> None:
    """Write the compressed images in store order, then the manifest."""
    count = min(SAMPLE, max(1, int(SAMPLE_BYTES / (12 * store.d))))
    rows = np.sort(np.random.default_rng(0).permutation(store.n)[:count])
    fitted = blocks.fitted(store.shape, store.values(rows))
    # The library's own save_file would make the file readable by its owner only.
    (part / TENSORS).write_bytes(save(fitted.tensors()))
    piece = max(1, int(PIECE / (4 * store.d)))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((part / name).open("wb")) for name in (NUMBERS, LENGTHS)]
        for first, images in parts(np.arange(store.n), piece):
            for file, array in zip(files, fitted.compress(store.values(images)), strict=True):
                file.write(np.ascontiguousarray(array).data)
            progress("reading pixels", first + len(images), store.n)
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
