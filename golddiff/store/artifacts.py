"""Artifacts: named arrays computed from a training set and saved in its folder.

A file's header records a checksum and the images and other inputs that it was computed from. A
file that is missing, damaged or of other inputs is recomputed. Read-only folders are not written.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from golddiff.system.errors import ArgumentError
from golddiff.system.files import atomic_write, leads_out, trim

FORMAT = "golddiff-artifact-1"
SHIPPED = Path(__file__).parent.parent / "data"
SUFFIX = ".safetensors"
Tensors = dict[str, NDArray[Any]]


class Artifacts:
    """The artifact files of one training set."""

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self._identity = folder, identity
        self.unsaved = 0  # bytes for which the disk had no room
        self._written = math.inf  # bytes saved since a folder's files were last counted

    def shipped(self) -> Artifacts:
        """The artifacts that ship with the package; they match its built-in images only."""
        return Artifacts(SHIPPED, self._identity)

    def path(self, name: str) -> Path:
        """The file of an artifact; the name may contain folders."""
        return self.folder / f"{name}{SUFFIX}"

    def head(self, name: str) -> dict[str, str] | None:
        """A file's header, without reading its arrays; None if it is not of these images."""
        path = self.path(name)
        if not path.is_file() or leads_out(self.folder, path):
            return None
        try:
            with safe_open(path, "numpy") as file:
                header: dict[str, str] = file.metadata() or {}
        except (OSError, SafetensorError):
            return None
        required = {"format": FORMAT, "images": self._digest_of_images()}
        return header if required.items() <= header.items() and "digest" in header else None

    def load(self, name: str, inputs: Mapping[str, str] | None = None) -> Tensors | None:
        """The arrays of an artifact, or None if they must be computed; see :meth:`save`."""
        header = self.head(name)
        if header is None or not (inputs or {}).items() <= header.items():
            return None
        try:
            with safe_open(self.path(name), "numpy") as file:
                tensors: Tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, TypeError):
            return None
        if header["digest"] != digest_of(tensors):
            return None
        with contextlib.suppress(OSError):
            os.utime(self.path(name))  # marks it as used recently
        return tensors

    def save(
        self,
        name: str,
        tensors: Mapping[str, NDArray[Any]],
        inputs: Mapping[str, str] | None = None,
        max_bytes: int | None = None,
    ) -> None:
        """Save arrays under a name, if the folder is writable.

        ``inputs`` records inputs other than the images. ``max_bytes`` limits the files in the
        artifact's folder; the least recently used ones are deleted.
        """
        path = self.path(name)
        if not self.folder.is_dir() or leads_out(self.folder, path.parent):
            return
        body = self.body(tensors, inputs)
        if max_bytes is not None and len(body) > max_bytes:
            return
        try:
            self._written += len(body)
            # Counting thousands of files takes many times as long as a call.
            if max_bytes is not None and self._written > max_bytes // 16:
                trim(path.parent, max_bytes - max_bytes // 16 - len(body), f"*{SUFFIX}")
                self._written = 0
            with atomic_write("store", path) as temporary:
                temporary.write_bytes(body)
        except (ArgumentError, OSError):
            self.unsaved += len(body)

    def body(
        self, tensors: Mapping[str, NDArray[Any]], inputs: Mapping[str, str] | None = None
    ) -> bytes:
        """The file contents for these arrays, always the same bytes; see :meth:`save`."""
        arrays = {key: np.asarray(array, order="C") for key, array in tensors.items()}
        own = {"format": FORMAT, "images": self._digest_of_images(), "digest": digest_of(arrays)}
        return _sorted_metadata(save(arrays, {**(inputs or {}), **own}))

    def _digest_of_images(self) -> str:
        return hashlib.sha256(self._identity.encode()).hexdigest()


def _sorted_metadata(body: bytes) -> bytes:
    """The safetensors file with its metadata sorted by key; the library's order is random."""
    length = int.from_bytes(body[:8], "little")
    head = json.loads(body[8 : 8 + length])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    return b"".join((body[:8], text.ljust(length), memoryview(body)[8 + length :]))


def digest_of(tensors: Mapping[str, NDArray[Any]]) -> str:
    """A checksum of named arrays."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
