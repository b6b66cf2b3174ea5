"""The manifest of a store: what it holds, and a checksum for every file."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from golddiff.errors import StoreError

FORMAT = "golddiff-store"
VERSION = 1
NAME = "manifest.json"


@dataclass
class FileRecord:
    """Size in bytes and SHA-256 of one file of a store."""

    bytes: int
    sha256: str


@dataclass
class Manifest:
    """What a store holds.

    Attributes:
        n: number of examples.
        shape: shape of one example, (C, H, W) or (D,).
        dtype: "uint8" or "float32".
        labelled: whether labels.bin is there.
        class_names: a name for each class index, or None.
        proxy_shape: shape of one screening proxy.
        source: one line that says where the images came from.
        skipped: how many unreadable images were left out.
        files: a record for each file.
    """

    n: int
    shape: tuple[int, ...]
    dtype: str
    labelled: bool
    class_names: list[str] | None
    proxy_shape: tuple[int, ...]
    source: str
    skipped: int = 0
    files: dict[str, FileRecord] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write the manifest, with a digest of its own contents."""
        body: dict[str, Any] = {"format": FORMAT, "version": VERSION, **asdict(self)}
        body["digest"] = _digest(body)
        (folder / NAME).write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check the manifest of the store in ``folder``.

        Raises:
            StoreError: no manifest, not one of ours, another format version, or altered.
        """
        path = folder / NAME
        if not folder.exists():
            raise StoreError(f"store: {folder} does not exist")
        if not path.is_file():
            raise StoreError(f"store: {folder} holds no {NAME}, so it is not a complete store")
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise StoreError(f"store: {path} is damaged ({error}); build the store again") from None
        if not isinstance(body, dict) or body.get("format") != FORMAT:
            raise StoreError(f"store: {path} is not the manifest of a golddiff store")
        if body.get("version") != VERSION:
            raise StoreError(
                f"store: {folder} has format version {body.get('version')!r}, "
                f"this golddiff reads version {VERSION}; build the store again"
            )
        digest = body.pop("digest", None)
        if digest != _digest(body):
            raise StoreError(f"store: {path} was altered or damaged; build the store again")
        return cls(
            n=body["n"],
            shape=tuple(body["shape"]),
            dtype=body["dtype"],
            labelled=body["labelled"],
            class_names=body["class_names"],
            proxy_shape=tuple(body["proxy_shape"]),
            source=body["source"],
            skipped=body["skipped"],
            files={name: FileRecord(**record) for name, record in body["files"].items()},
        )

    def check_sizes(self, folder: Path) -> None:
        """Check that every file is there and has its recorded and its implied size.

        Raises:
            StoreError: a file is missing or has another size.
        """
        implied = {
            "pixels.bin": self.n * math.prod(self.shape) * (1 if self.dtype == "uint8" else 4)
        }
        for name, record in self.files.items():
            path = folder / name
            if not path.is_file():
                raise StoreError(f"store: {path} is missing; build the store again")
            size = path.stat().st_size
            if size != record.bytes or size != implied.get(name, size):
                raise StoreError(
                    f"store: {path} has {size} bytes, expected {record.bytes}; it was truncated "
                    "or altered; build the store again"
                )


def identity_of(manifest: Manifest) -> str:
    """The checksums of the pixels and labels: what a store holds, wherever it lies."""
    files = manifest.files
    return " ".join(files[name].sha256 for name in ("pixels.bin", "labels.bin") if name in files)


def file_record(path: Path) -> FileRecord:
    """Size and SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(path.stat().st_size, digest)


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
