"""Targets for readers of images: image files, parquet, archives, arrays, idx, CIFAR."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from golddiff.sources import open_source
from golddiff.sources.cifar import open_cifar_folder
from golddiff.sources.decode import UnreadableImageError, decode, read_header
from golddiff.sources.source_options import SourceOptions
from reliability.fuzz.structured import gzip_inside, png_chunks, zip_members
from reliability.fuzz.target import MEGABYTE, Target

KINDS = (
    *("PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP"),
    *("PPM", "TGA", "PCX", "SGI", "JPEG2000"),
)
# Limits of golddiff.sources.decode for an image, with at most 24 bytes per pixel.
IMAGE_FLOOR, IMAGE_MULTIPLE = 512 * MEGABYTE, 256 * 24


def targets() -> list[Target]:
    """All targets of this module."""
    limits = {"floor": IMAGE_FLOOR, "multiple": IMAGE_MULTIPLE}
    return [
        Target(
            "image",
            images,
            _decode,
            (png_chunks,),
            refuses=(UnreadableImageError,),
            **limits,
        ),
        Target("parquet", parquets, _read_as("x.parquet"), **limits),
        Target("zip", zips, _read_as("x.zip"), (zip_members,), **limits),
        Target("npz", npzs, _read_as("x.npz"), (zip_members,)),
        Target("npy", npys, _read_as("x.npy")),
        Target("idx", idxs, _read_as("train-images-idx3-ubyte")),
        Target("idx.gz", idx_gzs, _read_as("train-images-idx3-ubyte.gz"), (gzip_inside,)),
        Target("cifar", cifars, _cifar),
        Target("cifar tar", tars, _read_as("cifar.tar.gz"), (gzip_inside,)),
    ]


def array(seed: int = 0, shape: tuple[int, ...] = (4, 4, 3)) -> np.ndarray[Any, Any]:
    """Noise as uint8."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def encoded(pixels: np.ndarray[Any, Any], kind: str = "PNG", **options: Any) -> bytes:
    """The bytes of an image file."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, kind, **options)
    return out.getvalue()


def images() -> list[bytes]:
    """Small image files in all formats, several modes and encodings."""
    files = [encoded(array(i, (16, 16, 3)), kind) for i, kind in enumerate(KINDS)]
    files += [encoded(array(1, (5, 7))), encoded(array(1, (4, 4, 4)))]
    files += [encoded(array(2, (16, 16, 3)), "JPEG", progressive=True)]
    palette = Image.fromarray(array(3)).convert("P")
    for kind, image in (("PNG", palette), ("GIF", palette), ("TIFF", Image.fromarray(array(4)))):
        out = io.BytesIO()
        extra = {"compression": "tiff_lzw"} if kind == "TIFF" else {}
        image.save(out, kind, **extra)
        files.append(out.getvalue())
    deep = Image.fromarray(array(5, (4, 4)).astype(np.uint16) * 257)
    out = io.BytesIO()
    deep.save(out, "PNG")
    files.append(out.getvalue())
    exif = Image.Exif()
    exif[0x0112] = 6
    files.append(encoded(array(6), "JPEG", exif=exif))
    return files


def parquets() -> list[bytes]:
    """Parquet tables of images, one for each compression."""
    files = []
    names = json.dumps({"info": {"features": {"label": {"names": ["a", "b"]}}}})
    for i, compression in enumerate(("snappy", "none", "gzip", "zstd")):
        rows = [{"bytes": encoded(array(j)), "path": f"{j}.png"} for j in range(3)]
        kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
        labels = pa.array(["a", "b", "a"]) if i == 1 else pa.array([0, 1, 0])
        table = pa.table({"image": pa.array(rows, kind), "label": labels})
        table = table.replace_schema_metadata({"huggingface": names})
        out = io.BytesIO()
        pq.write_table(table, out, compression=compression, row_group_size=2)
        files.append(out.getvalue())
    return files


def zips() -> list[bytes]:
    """Zip archives of images: flat, by class, and in the layout of EDM."""
    return [
        packed({f"{i}.png": encoded(array(i)) for i in range(3)}),
        packed({f"{'ab'[i % 2]}/{i}.png": encoded(array(i)) for i in range(4)}),
        packed(
            {
                "00000/img00000000.png": encoded(array(0)),
                "00000/img00000001.png": encoded(array(1)),
                "dataset.json": json.dumps(
                    {"labels": [["00000/img00000000.png", 1], ["00000/img00000001.png", 0]]}
                ).encode(),
            },
            zipfile.ZIP_DEFLATED,
        ),
    ]


def packed(members: dict[str, bytes], kind: int = zipfile.ZIP_STORED) -> bytes:
    """A zip archive."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", kind) as archive:
        for name, body in members.items():
            archive.writestr(name, body)
    return out.getvalue()


def npzs() -> list[bytes]:
    """Npz archives, plain and compressed."""
    files = []
    for save, pixels in (
        (np.savez, array(0, (3, 4, 4))),
        (np.savez_compressed, array(0, (3, 8, 8, 3))),
        (np.savez, np.linspace(-1, 1, 6, dtype=np.float32).reshape(3, 2)),
    ):
        out = io.BytesIO()
        save(out, images=pixels, labels=np.arange(3))
        files.append(out.getvalue())
    return files


def npys() -> list[bytes]:
    """Npy files of several dtypes and orders."""
    files = []
    for values in (
        array(0, (3, 4, 4)),
        array(0, (3, 8, 8, 3)),
        np.linspace(-1, 1, 6).reshape(3, 2),
        np.asfortranarray(array(0, (3, 2, 4, 4))),
        np.linspace(-1, 1, 6).reshape(3, 2).astype(">f2"),
    ):
        out = io.BytesIO()
        np.save(out, values)
        files.append(out.getvalue())
    return files


def idx(pixels: np.ndarray[Any, Any]) -> bytes:
    """An idx file of uint8."""
    head = bytes((0, 0, 8, pixels.ndim))
    return head + np.array(pixels.shape, ">u4").tobytes() + pixels.tobytes()


def idxs() -> list[bytes]:
    """Idx files."""
    return [idx(array(0, (3, 4, 5))), idx(array(1, (1, 28, 28)))]


def idx_gzs() -> list[bytes]:
    """Compressed idx files."""
    return [gzip.compress(data, mtime=0) for data in idxs()]


def cifars() -> list[bytes]:
    """Pickles of two images in the layout of CIFAR-100, in the protocols in use."""
    table = {"data": array(0, (2, 3072)), "fine_labels": [1, 2], "filenames": ["a", "b"]}
    as_bytes = {key.encode(): value for key, value in table.items()}
    return [pickle.dumps(table, 2), pickle.dumps(as_bytes, 4), pickle.dumps(as_bytes, 2)]


def _cifar(data: bytes, folder: Path) -> None:
    (folder / "train").write_bytes(data)
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": ["a", "b", "c"]}, 2))
    for _ in open_cifar_folder(folder, SourceOptions()).batches(2):
        pass


def tars() -> list[bytes]:
    """The published form of CIFAR-100: pickles in a compressed tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, body in (
            ("cifar-100-python/train", cifars()[0]),
            ("cifar-100-python/meta", pickle.dumps({"fine_label_names": ["a", "b", "c"]}, 2)),
        ):
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
    return [gzip.compress(out.getvalue(), 1, mtime=0)]


def _decode(data: bytes, folder: Path) -> None:
    read_header(data)
    decode(data, size=8)
    decode(data)


def _read_as(name: str) -> Any:
    """A function that reads all of an input as a file of this name."""

    def read(data: bytes, folder: Path) -> None:
        (folder / name).write_bytes(data)
        for _ in open_source(folder / name).batches(2):
            pass

    return read
