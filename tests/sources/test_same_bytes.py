"""Scaled and built-in images have the same bytes as in earlier versions."""

import hashlib
import json

import numpy as np
import pytest

import golddiff.store.build
from golddiff.store.images import ImageStore

from .make import png


def resized(folder):
    for i in range(70):
        (folder / f"{i:03}.png").write_bytes(png(i, *((13, 9) if i == 30 else (8, 8))))
    return folder


# Sources with the first 16 digits of the SHA-256 of their stores.
CASES = {
    "resized": (
        resized,
        {"size": 6, "channels": 1, "labels": [i % 2 for i in range(70)]},
        "a44e97ee74e85d20",
    ),
    "digits": (lambda folder: "digits", {"size": 12}, "059024cb84bc0422"),
    "patches": (
        lambda folder: "patches",
        {"limit": 1100, "size": 8, "seed": 3},
        "109d62961d261345",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_bytes_of_a_store_do_not_change(tmp_path, name):
    make, options, known = CASES[name]
    (tmp_path / "source").mkdir()
    store = ImageStore.build(make(tmp_path / "source"), tmp_path / "s", **options)
    manifest = json.loads((store.path / "manifest.json").read_text())
    header = json.dumps([manifest["shape"], manifest["class_names"], manifest["skipped"]])
    digest = hashlib.sha256(header.encode())
    for file in ("pixels.bin", "labels.bin"):
        if (store.path / file).exists():
            digest.update((store.path / file).read_bytes())
    assert digest.hexdigest()[:16] == known


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
