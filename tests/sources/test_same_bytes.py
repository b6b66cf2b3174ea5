"""Every kind of source gives a store with the same bytes as in earlier versions."""

import gzip
import hashlib
import io
import json
import pickle
import tarfile
import zipfile

import datasets
import numpy as np
import pytest

import golddiff.store.build
from golddiff.store.images import ImageStore
from golddiff.store.opening import open_source

from .make import encoded, pixels, png, write_parquet

PNGS = [png(i) for i in range(70)]
STACK = np.stack([pixels(i).transpose(2, 0, 1) for i in range(70)])
LABELS = [i % 2 for i in range(70)]


def flat(folder):
    for i, data in enumerate(PNGS):
        (folder / f"{i:03}.png").write_bytes(data)
    return folder


def classes(folder):
    for i, data in enumerate(PNGS):
        subfolder = folder / "train" / ("cat" if i % 2 == 0 else "dog")
        subfolder.mkdir(parents=True, exist_ok=True)
        (subfolder / f"{i:03}.png").write_bytes(data)
    return folder


def parquet(folder):
    return write_parquet(folder / "a.parquet", PNGS, LABELS)


def shards(folder):
    for i in range(2):
        part = slice(35 * i, 35 * i + 35)
        name = f"train-0000{i}-of-00002.parquet"
        write_parquet(folder / "data" / name, PNGS[part], LABELS[part])
    return folder


def zipped(folder):
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        for i, data in enumerate(PNGS):
            archive.writestr(f"00000/img{i:08}.png", data)
        pairs = [[f"00000/img{i:08}.png", label] for i, label in enumerate(LABELS)]
        archive.writestr("dataset.json", json.dumps({"labels": pairs}))
    return folder / "a.zip"


def npz(folder):
    np.savez(folder / "a.npz", images=STACK, labels=np.array(LABELS))
    return folder / "a.npz"


def npy(folder):
    np.save(folder / "a.npy", STACK)
    return folder / "a.npy"


def idx(folder):
    grey = STACK[:, 0]
    head = bytes((0, 0, 8, 3)) + np.array(grey.shape, ">u4").tobytes()
    (folder / "train-images-idx3-ubyte.gz").write_bytes(gzip.compress(head + grey.tobytes()))
    head = bytes((0, 0, 8, 1)) + np.array([70], ">u4").tobytes()
    (folder / "train-labels-idx1-ubyte").write_bytes(head + bytes(LABELS))
    return folder


def cifar(folder):
    values = np.random.default_rng(0).integers(0, 256, (70, 3072), dtype=np.uint8)
    tables = {"train": {b"data": values, b"fine_labels": LABELS}}
    tables["meta"] = {b"fine_label_names": [b"cat", b"dog"]}
    with tarfile.open(folder / "cifar.tar.gz", "w:gz") as archive:
        for name, table in tables.items():
            data = pickle.dumps(table, 2)
            member = tarfile.TarInfo(f"cifar-100-python/{name}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return folder / "cifar.tar.gz"


def dataset(folder):
    names = datasets.ClassLabel(names=["cat", "dog"])
    features = datasets.Features({"image": datasets.Image(), "label": names})
    rows = {"image": [{"bytes": data} for data in PNGS], "label": LABELS}
    return datasets.Dataset.from_dict(rows, features=features)


def stored(folder):
    ImageStore.build(STACK, folder / "s", LABELS)
    return folder / "s"


def damaged(folder):
    flat(folder)
    (folder / "010.png").write_bytes(b"nothing")
    (folder / "020.png").write_bytes(encoded(pixels(20))[:-30])
    return folder


def resized(folder):
    flat(folder)
    (folder / "030.png").write_bytes(png(30, 13, 9))
    return folder


def tensor(folder):
    return STACK.transpose(0, 2, 3, 1)


def floats(folder):
    return STACK.astype(np.float64)[:, :2] / 7


# The first 16 digits of the SHA-256 of a store's shape, class names, pixels and labels.
KNOWN = {
    "flat": "166cce16a4cbcc97",
    "classes": "a85f911948e01064",
    "parquet": "437f59d779082ff9",
    "shards": "437f59d779082ff9",
    "zipped": "437f59d779082ff9",
    "npz": "437f59d779082ff9",
    "npy": "166cce16a4cbcc97",
    "idx": "1260976efcca87bc",
    "cifar": "4fa2bcbc2a7c22d7",
    "dataset": "5686bc482661f903",
    "stored": "437f59d779082ff9",
    "tensor": "166cce16a4cbcc97",
    "floats": "2d5a76a2312e4f4a",
    "damaged": "de1640a03f1e2512",
    "resized": "a44e97ee74e85d20",
    "digits": "059024cb84bc0422",
    "patches": "109d62961d261345",
}


def digest(path):
    manifest = json.loads((path / "manifest.json").read_text())
    header = json.dumps([manifest["shape"], manifest["class_names"], manifest["skipped"]])
    digest = hashlib.sha256(header.encode())
    for name in ("pixels.bin", "labels.bin"):
        if (path / name).exists():
            digest.update((path / name).read_bytes())
    return digest.hexdigest()[:16]


CASES = [
    *((make, {}) for make in (flat, classes, parquet, shards, zipped, npz, npy, idx, cifar)),
    *((make, {}) for make in (dataset, stored, tensor, floats)),
    (damaged, {"skip_bad": True, "limit": 40}),
    (resized, {"size": 6, "channels": 1, "labels": LABELS}),
    (lambda folder: "digits", {"size": 12}),
    (lambda folder: "patches", {"limit": 1100, "size": 8, "seed": 3}),
]
NAMES = [make.__name__ for make, _ in CASES[:-2]] + ["digits", "patches"]


@pytest.mark.parametrize(("name", "case"), list(zip(NAMES, CASES, strict=True)), ids=NAMES)
def test_the_bytes_of_a_store_do_not_change(tmp_path, name, case):
    make, options = case
    (tmp_path / "source").mkdir()
    source = open_source(make(tmp_path / "source"), **options)
    golddiff.store.build.build(source, tmp_path / "case", overwrite=False, progress=False)
    assert digest(tmp_path / "case") == KNOWN[name]


@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 5, 9), (3, 33, 31), (7,)])
def test_a_store_does_not_depend_on_the_batch_size(tmp_path, monkeypatch, shape):
    images = np.random.default_rng(0).integers(0, 256, (60, *shape), dtype=np.uint8)
    source = images if len(shape) == 3 else images.astype(np.float32) / 100
    expected = ImageStore.build(source, tmp_path / "whole").manifest.files
    for size in (1, 2, 13):
        monkeypatch.setattr(golddiff.store.build, "BATCH", size)
        files = ImageStore.build(source, tmp_path / str(size)).manifest.files
        assert {n: r for n, r in files.items() if "factor" not in n} == {
            n: r for n, r in expected.items() if "factor" not in n
        }
