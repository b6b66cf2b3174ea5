"""The manifest of a store: its metadata and a checksum for every file."""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from golddiff.system.errors import StoreError, printable
from golddiff.system.files import check_inside

FORMAT = "golddiff-store"
VERSION = 1
NAME = "manifest.json"
SHARDS = "shards.json"  # the list of a store in shards, instead of a manifest
FILE_NAMES = "names.txt"  # the file name of each image, one per line, if the source has files
CHECKED_BYTES = 1 << 28  # larger float stores are not scanned for NaN when opened


@dataclass
class FileRecord:
    """Size in bytes and SHA-256 of one file of a store."""

    bytes: int
    sha256: str


@dataclass
class Manifest:
    """The metadata of a store."""

    n: int  # number of examples
    shape: tuple[int, ...]  # shape of one example, (C, H, W) or (D,)
    dtype: str  # "uint8" or "float32"
    labelled: bool  # whether the store has labels.bin
    is_pixels: bool  # whether the values are pixels in [-1, 1]; latents and points have no range
    class_names: list[str] | None  # a name for each class index, or None
    proxy_shape: tuple[int, ...]  # shape of one screening proxy
    source: str  # description of the images' source, in one line
    skipped: int = 0  # number of unreadable images that were skipped
    files: dict[str, FileRecord] = field(default_factory=dict)  # records by file name

    @property
    def bytes(self) -> int:
        """Total size of all files."""
        return sum(record.bytes for record in self.files.values())

    @property
    def identity(self) -> str:
        """The checksums of pixels and labels, which identify a store's images in any location."""
        return " ".join(record.sha256 for record in self._images.values())

    @property
    def images_checksum(self) -> str:
        """One checksum of the images and labels, independent of the store's location."""
        lines = [f"{name}:{record.sha256}" for name, record in self._images.items()]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()

    @property
    def _images(self) -> dict[str, FileRecord]:
        return {n: self.files[n] for n in ("pixels.bin", "labels.bin") if n in self.files}

    @property
    def scaling(self) -> tuple[float, float]:
        """Scale and offset from stored values to [-1, 1] units."""
        return (1 / 127.5, -1.0) if self.dtype == "uint8" else (1.0, 0.0)

    def write(self, folder: Path) -> None:
        """Write the manifest with a digest of its contents."""
        (folder / NAME).write_text(sealed(FORMAT, VERSION, asdict(self)), encoding="utf-8")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read and check the manifest of the store in ``folder``."""
        path = folder / NAME
        if not folder.exists():
            raise StoreError(f"store: {folder} does not exist")
        if (folder / SHARDS).is_file():
            raise StoreError(
                f"store: {folder} is in shards, which golddiff sample --cluster and "
                "golddiff.cluster.ShardedStore open"
            )
        if not path.is_file():
            raise StoreError(
                f"store: {folder} holds no {NAME}, so it is not a complete store; golddiff index "
                "makes one"
            )
        check_inside(folder, path, StoreError)
        try:
            text = path.read_bytes()
        except OSError as error:
            raise StoreError(f"store: {path} cannot be read ({error.strerror or error})") from error
        body = unsealed(str(path), text, FORMAT, VERSION, "manifest of a golddiff store")
        body.setdefault("is_pixels", body.get("dtype") == "uint8")  # a new field
        problem = _problem(body)
        if problem:
            raise damaged(f"{path} {problem}")
        fields = {name: body[name] for name in cls.__dataclass_fields__}
        names, files = fields["class_names"], fields["files"]
        return cls(**fields | {
            "shape": tuple(fields["shape"]), "proxy_shape": tuple(fields["proxy_shape"]),
            "class_names": names and [printable(name) for name in names],
            "source": printable(fields["source"]),
            "files": {name: FileRecord(**record) for name, record in files.items()},
        })  # fmt: skip

    def names(self, folder: Path) -> list[str] | None:
        """The file name of each image of the store in ``folder``; None if it has none."""
        # A store that was deleted or built again while in use still serves its mapped images.
        if FILE_NAMES not in self.files or not (folder / FILE_NAMES).is_file():
            return None
        text = (folder / FILE_NAMES).read_bytes()
        names = [printable(name) for name in text.decode("utf-8", "replace").split("\n")[:-1]]
        record = FileRecord(len(text), hashlib.sha256(text).hexdigest())
        return names if self.files[FILE_NAMES] == record and len(names) == self.n else None

    def check_sizes(self, folder: Path) -> None:
        """Check that every file exists and has the right size, and that the values are valid."""
        expected = {
            "pixels.bin": self.n * math.prod(self.shape) * (1 if self.dtype == "uint8" else 4),
            "proxies.bin": self.n * math.prod(self.proxy_shape) * 4,
            "norms.bin": self.n * 4,
            "labels.bin": self.n * 8,
        }
        for name, record in self.files.items():
            path = folder / name
            if not path.is_file():
                raise damaged(f"{path} is missing")
            check_inside(folder, path, StoreError)
            if not os.access(path, os.R_OK):
                raise StoreError(f"store: {path} cannot be read (permission denied)")
            size = path.stat().st_size
            for wanted in (record.bytes, expected.get(name, size)):
                if size != wanted:
                    has = f"has {size} bytes, expected {wanted}; it was truncated or altered"
                    raise damaged(f"{path} {has}")
        self._check_values(folder)

    def verify(self, folder: Path) -> None:
        """Recompute every checksum and check all values; raise StoreError on a mismatch."""
        for name, record in self.files.items():
            if file_record(folder / name) != record:
                raise damaged(f"{folder / name} does not match its checksum")
        self._check_values(folder, math.inf)

    def _check_values(self, folder: Path, most: float = CHECKED_BYTES) -> None:
        """Check labels and float values, because a forged file can have a valid checksum."""
        import numpy as np  # not at the top, to keep --help fast

        labels, pixels = folder / "labels.bin", folder / "pixels.bin"
        if self.labelled and np.fromfile(labels, np.int64).min() < 0:
            raise damaged(f"{labels} holds negative class indices")
        if self.dtype != "float32" or pixels.stat().st_size > most:
            return
        with pixels.open("rb") as file:
            while len(values := np.fromfile(file, np.float32, 1 << 24)):
                if not np.isfinite(values).all():
                    raise damaged(f"{pixels} holds a NaN or an infinity")


def damaged(problem: str) -> StoreError:
    """The error of a store that must be built again."""
    return StoreError(f"store: {problem}; build the store again")


def _problem(body: dict[str, Any]) -> str | None:
    """The first problem of a manifest, in words; None if it is valid.

    The digest does not prove this, because a forged manifest can have a valid digest.
    """
    if "class_names" not in body:
        return "lacks fields of a manifest"
    from golddiff.store.proxy import quarter_shape  # imports torch; not at the top for --help

    lists = body.get("shape"), body.get("proxy_shape")
    if not _whole(body.get("n"), 1):
        return f"holds {body.get('n')!r} images"
    if not all(isinstance(sides, list) and len(sides) in (1, 3) for sides in lists):
        return "has no shape"
    shape, proxy_shape = lists
    if not all(_whole(side, 1) for side in (*shape, *proxy_shape)):  # type: ignore[misc]
        return f"has the shape {shape}"
    if tuple(proxy_shape) != quarter_shape(tuple(shape)):  # type: ignore[arg-type]
        return f"has proxies of shape {proxy_shape}"
    if body.get("dtype") not in ("uint8", "float32"):
        return f"has the data type {body.get('dtype')!r}"
    names, files = body.get("class_names"), body.get("files")
    names_valid = names is None or (isinstance(names, list) and all(type(n) is str for n in names))
    others_valid = isinstance(body.get("source"), str) and _whole(body.get("skipped"), 0)
    flags = body.get("labelled"), body.get("is_pixels")
    if not (names_valid and others_valid and all(isinstance(flag, bool) for flag in flags)):
        return "lacks fields of a manifest"
    required = {"pixels.bin", "proxies.bin", "norms.bin", *(["labels.bin"] * body["labelled"])}
    if not isinstance(files, dict) or not required <= files.keys():
        return "lacks files of a store"
    return problem_of_files(files)


def problem_of_files(files: dict[str, Any]) -> str | None:
    """The first problem of the file records of a manifest, in words; None if they are valid."""
    for name, record in files.items():
        if name in ("", ".", "..") or Path(name).name != name or "\0" in name:
            return f"names a file outside its folder: {name!r}"
        if not isinstance(record, dict) or record.keys() != {"bytes", "sha256"}:
            return f"has no record of {name!r}"
        if not _whole(record["bytes"], 0) or not isinstance(record["sha256"], str):
            return f"has no sound record of {name!r}"
    return None


def _whole(value: object, least: int) -> bool:
    # The bound 2^40 keeps products of a few such numbers representable.
    return type(value) is int and least <= value < 2**40


def file_record(path: Path) -> FileRecord:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRecord(path.stat().st_size, digest)


def sealed(form: str, version: int, body: dict[str, Any]) -> str:
    """A record as JSON text, with its format, version and a digest of all three."""
    record = {"format": form, "version": version, **body}
    return json.dumps({**record, "digest": _digest(record)}, indent=1) + "\n"


def unsealed(path: str, text: str | bytes, form: str, version: int, kind: str) -> dict[str, Any]:
    """The record that :func:`sealed` wrote; raises StoreError if it is invalid or altered."""
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise damaged(f"{path} is damaged ({error})") from None
    if not isinstance(body, dict) or body.get("format") != form:
        raise StoreError(f"store: {path} is no {kind}")
    if body.get("version") != version:
        found = body.get("version")
        raise damaged(f"{path} has format version {found!r}, this golddiff reads version {version}")
    if body.pop("digest", None) != _digest(body):
        raise damaged(f"{path} was altered or damaged")
    return body


def _digest(body: dict[str, Any]) -> str:
    canonical = json.dumps(body, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
