"""What was computed from a training set and is kept with it: named arrays in files.

A file says in its head of which images it was made, and of what else; and it has a checksum. One
that is missing, damaged, of other images or made of something else is recomputed, never trusted;
where the folder may not be written to nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from golddiff.system.errors import ArgumentError
from golddiff.system.files import leads_out, trim, written_whole

FORMAT = "golddiff-artifact-1"
SHIPPED = Path(__file__).parent.parent / "data"
SUFFIX = ".safetensors"
Tensors = dict[str, NDArray[Any]]


class Artifacts:
    """The files of one training set."""

    def __init__(self, folder: Path, identity: str) -> None:
        self.folder, self._identity = folder, identity

    def shipped(self) -> Artifacts:
        """Those that come with the package: of its built-in images, and of use for no others."""
        return Artifacts(SHIPPED, self._identity)

    def path(self, name: str) -> Path:
        """Where arrays of a name are kept; the name may have folders."""
        return self.folder / f"{name}{SUFFIX}"

    def head(self, name: str) -> dict[str, str] | None:
        """What a file says of itself; its arrays are not read. None: it is not of these images."""
        path = self.path(name)
        if not path.is_file() or leads_out(self.folder, path):
            return None
        try:
            with safe_open(path, "numpy") as file:
                said: dict[str, str] = file.metadata() or {}
        except (OSError, SafetensorError):
            return None
        ours = {"format": FORMAT, "images": self._digest_of_images()}
        return said if ours.items() <= said.items() and "digest" in said else None

    def load(self, name: str, made_of: Mapping[str, str] | None = None) -> Tensors | None:
        """The arrays of a name, or None where they have to be made."""
        said = self.head(name)
        if said is None or not (made_of or {}).items() <= said.items():
            return None
        try:
            with safe_open(self.path(name), "numpy") as file:
                tensors: Tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, TypeError):
            return None
        if said["digest"] != digest_of(tensors):
            return None
        with contextlib.suppress(OSError):
            os.utime(self.path(name))  # used now
        return tensors

    def save(
        self,
        name: str,
        tensors: Mapping[str, NDArray[Any]],
        made_of: Mapping[str, str] | None = None,
        most: int | None = None,
    ) -> None:
        """Keep arrays under a name, if the folder may be written to.

        ``made_of`` says what else they were made of. Files of its folder take ``most`` bytes at
        most; those used longest ago go.
        """
        path = self.path(name)
        if not self.folder.is_dir() or leads_out(self.folder, path.parent):
            return
        body = self.body(tensors, made_of)
        if most is not None and len(body) > most:
            return
        with contextlib.suppress(ArgumentError, OSError):
            if most is not None:
                trim(path.parent, most - len(body), f"*{SUFFIX}")
            with written_whole("store", path) as temporary:
                temporary.write_bytes(body)

    def body(
        self, tensors: Mapping[str, NDArray[Any]], made_of: Mapping[str, str] | None = None
    ) -> bytes:
        """What a file of these arrays holds, the same bytes every time; see :meth:`save`."""
        made = {key: np.asarray(array, order="C") for key, array in tensors.items()}
        ours = {"format": FORMAT, "images": self._digest_of_images(), "digest": digest_of(made)}
        return _in_order(save(made, {**(made_of or {}), **ours}))

    def _digest_of_images(self) -> str:
        return hashlib.sha256(self._identity.encode()).hexdigest()


def _in_order(body: bytes) -> bytes:
    """A safetensors file with what it says of itself by name: the library's order is random."""
    length = int.from_bytes(body[:8], "little")
    head = json.loads(body[8 : 8 + length])
    head["__metadata__"] = dict(sorted(head["__metadata__"].items()))
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False).encode()
    return body[:8] + text.ljust(length) + body[8 + length :]


def digest_of(tensors: Mapping[str, NDArray[Any]]) -> str:
    """A checksum of named arrays."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        array = np.asarray(tensors[name], order="C")
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.data)
    return digest.hexdigest()
