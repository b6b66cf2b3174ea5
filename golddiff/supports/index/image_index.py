"""An index on disk: built in one pass over the pixels, opened and checked."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from golddiff.kernels.byte_distances import MIDDLE
from golddiff.kernels.stored import Stored
from golddiff.store.images import ImageStore
from golddiff.store.manifest import FileRecord, Manifest, file_record, problem_of_files
from golddiff.store.novelty import Watch
from golddiff.supports.index.blocks import Blocks, fitted, numbers_of, of_tensors
from golddiff.system.errors import ArgumentError, BusyError, StoreError
from golddiff.system.files import check_disk, check_inside, leads_out
from golddiff.system.folders import folder_in_place, wait_for_builder
from golddiff.system.numbers import F32
from golddiff.system.residency import parts

FOLDER = "index"
MANIFEST, FORMAT, VERSION = "index.json", "golddiff-index", 4
NUMBERS, LENGTHS, TENSORS = "numbers.bin", "lengths.bin", "blocks.safetensors"
SAMPLE = 8192  # images that the blocks are fitted to; fewer if fitting would exceed SAMPLE_BYTES
SAMPLE_BYTES = 2e9
PIECE = 64e6  # size of a batch of images as float32, in bytes

log = logging.getLogger("golddiff")
# Files whose checksum has been verified: inode, modification time, size, checksum.
_verified: set[tuple[int, int, int, str]] = set()


@dataclass(eq=False)
class Index:
    """The index of a store; use :meth:`open` or :meth:`build`."""

    store: ImageStore  # the training set
    blocks: Blocks  # the compression of its images

    @cached_property
    def numbers(self) -> NDArray[np.uint8]:
        """(N, B q) bytes of the images, in store order; mapped within the store's memory limit."""
        shape = (self.store.n, numbers_of(self.store.shape))
        return self.store.residency.map(self.folder / NUMBERS, "uint8", shape)

    @property
    def stored(self) -> Stored:
        """:attr:`numbers` with the scale and offset that convert bytes to coefficients."""
        unit = self.blocks.unit
        return Stored(self.numbers, unit, -MIDDLE * unit)

    @cached_property
    def lengths(self) -> F32:
        """(N, 2) norms of each image's residual and quantization error; see :class:`Blocks`."""
        return np.memmap(self.folder / LENGTHS, "float32", "r", shape=(self.store.n, 2))

    @property
    def folder(self) -> Path:
        """The folder of the index."""
        return self.store.path / FOLDER

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the store, not the numbers, which may take a gigabyte."""
        return open_or_build, (self.store,)

    @classmethod
    def open(cls, store: ImageStore) -> Index:
        """Open the index in a store's folder; checks its format, store, file sizes and blocks."""
        folder = store.path / FOLDER
        body = _manifest(folder)
        if (body["version"], body["store"], body["n"]) != (VERSION, _identity(store), store.n):
            raise StoreError(
                f"index: {folder} is of another store or of format version {body['version']!r}, "
                f"expected {VERSION}; build the index again"
            )
        sizes = _file_sizes(store)
        for name in (NUMBERS, LENGTHS, TENSORS):
            path, listed = folder / name, body["files"].get(name, {}).get("bytes")
            check_inside(store.path, path, StoreError)
            size = sizes.get(name, listed)
            if listed != size or not path.is_file() or path.stat().st_size != size:
                raise StoreError(
                    f"index: {path} is missing or has another size than {size} bytes; "
                    "build the index again"
                )
        try:
            return cls(store, of_tensors(store.shape, load_file(folder / TENSORS)))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as problem:
            raise StoreError(
                f"index: {folder / TENSORS} is damaged ({problem}); build the index again"
            ) from None

    @classmethod
    def build(cls, store: ImageStore, watch: Watch = lambda done, total: None) -> Index:
        """Build the index of a store in its folder, a few batches in memory at a time; open it.

        ``watch`` is called with the number of images done and their total.

        Raises:
            ArgumentError: the store is in shards.
            StoreError: another process builds the index, it cannot be written, the disk is full.
        """
        if not isinstance(store, ImageStore):
            raise ArgumentError(
                "store: an index is of a single store (golddiff.ImageStore), not of one in shards"
            )
        Manifest.read(store.path)  # raises where the store was deleted: its index would come back
        busy = f"index: another process is building that of {store.path}"
        with folder_in_place("index", store.path / FOLDER, busy) as part:
            check_disk("index", store.path, sum(_file_sizes(store).values()))
            _fill(store, part, watch)
        return cls.open(store)

    def check_contents(self) -> None:
        """Verify files that are new or changed since the last check; proofs rely on them."""
        for name, record in _manifest(self.folder)["files"].items():
            path = self.folder / name
            stat = path.stat()
            key = (stat.st_ino, stat.st_mtime_ns, stat.st_size, record["sha256"])
            if key in _verified:
                continue
            if file_record(path) != FileRecord(**record):
                raise StoreError(
                    f"index: {path} does not match its checksum; build the index again"
                )
            _verified.add(key)


def open_or_build(store: ImageStore, watch: Watch = lambda done, total: None) -> Index:
    """The index of a store; built if it is missing, damaged or of another store."""
    try:
        return Index.open(store)
    except StoreError as error:
        log.warning("%s: building it now, once", error)
    try:
        return Index.build(store, watch)
    except BusyError:
        wait_for_builder(store.path / FOLDER)  # another process is building it
        return open_or_build(store, watch)


def _file_sizes(store: ImageStore) -> dict[str, int]:
    """The sizes in bytes of the two large files."""
    return {NUMBERS: store.n * numbers_of(store.shape), LENGTHS: store.n * 8}


def _identity(store: ImageStore) -> str:
    """The checksum of the store's pixels, which its index must match."""
    return store.manifest.files["pixels.bin"].sha256


def _fill(store: ImageStore, part: Path, watch: Watch) -> None:
    """Write the compressed images in store order, then the manifest."""
    count = min(SAMPLE, max(1, int(SAMPLE_BYTES / (12 * store.d))))
    rows = np.sort(np.random.default_rng(0).permutation(store.n)[:count])
    blocks = fitted(store.shape, store.values(rows))
    # The library's own save_file would make the file readable by its owner only.
    (part / TENSORS).write_bytes(save(blocks.tensors()))
    piece = max(1, int(PIECE / (4 * store.d)))
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context((part / name).open("wb")) for name in (NUMBERS, LENGTHS)]
        for first, images in parts(np.arange(store.n), piece):
            for file, array in zip(files, blocks.compress(store.values(images)), strict=True):
                file.write(np.ascontiguousarray(array).data)
            watch(first + len(images), store.n)
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    body = {
        "format": FORMAT,
        "version": VERSION,
        "store": _identity(store),
        "n": store.n,
        "files": {name: vars(file_record(part / name)) for name in (NUMBERS, LENGTHS, TENSORS)},
    }
    (part / MANIFEST).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")


def _manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    if not folder.exists():
        raise StoreError(f"index: {folder.parent} has none yet")
    if not path.is_file() or leads_out(folder.parent, path):
        raise StoreError(f"index: {folder} holds no {MANIFEST}, so there is no complete index")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise ValueError("of another format")
        if problem := problem_of_files(body["files"]):
            raise ValueError(problem)
        return {k: body[k] for k in ("version", "store", "n", "files")}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"index: {path} is damaged ({error}); build the index again") from None
