"""Hostile stores: forged manifests and forged files beside them."""

import json

import numpy as np
import pytest

from golddiff.store.images import ImageStore
from golddiff.store.manifest import _digest, file_record
from golddiff.system.errors import StoreError
from reliability.fuzz.images import array


def forge(folder, **changes):
    path = folder / "manifest.json"
    body = json.loads(path.read_text())
    body.pop("digest")
    for name, value in changes.items():
        body[name] = {**body[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(body | {"digest": _digest(body)}))


def test_links_out_of_the_store_are_refused(tmp_path):
    ImageStore.build(array(0, (4, 4, 4)), tmp_path / "s")
    pixels = tmp_path / "s" / "pixels.bin"
    secret = tmp_path / "secret"
    secret.write_bytes(pixels.read_bytes())
    pixels.unlink()
    pixels.symlink_to(secret)
    with pytest.raises(StoreError, match="symbolic link that leads out"):
        ImageStore.open(tmp_path / "s")


def test_manifest_with_files_outside_its_folder_is_refused(tmp_path):
    ImageStore.build(array(0, (4, 4, 4)), tmp_path / "s")
    forge(tmp_path / "s", files={"../secret": {"bytes": 1, "sha256": ""}})
    with pytest.raises(StoreError, match="outside its folder"):
        ImageStore.open(tmp_path / "s")


@pytest.mark.parametrize(
    "changes",
    [
        *({"n": n} for n in (0, -1, 2**62, "4", None)),
        *({"shape": s} for s in ([], [1, 4], [1, -4, 4], "x", [1, 4, 2**50])),
        *({"dtype": d} for d in ("object", 3, None)),
        *({"class_names": c} for c in (3, [1, 2])),
        *({"files": {"labels.bin": r}} for r in ({}, 5, {"bytes": -1, "sha256": ""})),
        *({"proxy_shape": p} for p in ([1], [1, 9, 9])),
        {"labelled": "yes"},
    ],
    ids=str,
)
def test_forged_manifests_are_refused(tmp_path, changes):
    ImageStore.build(array(0, (4, 4, 4)), tmp_path / "s", np.arange(4) % 2)
    forge(tmp_path / "s", **changes)
    with pytest.raises(StoreError, match="store: "):
        ImageStore.open(tmp_path / "s")


@pytest.mark.parametrize("label", [-1, -(2**63)])
def test_forged_labels_are_refused(tmp_path, label):
    ImageStore.build(array(0, (4, 4, 4)), tmp_path / "s", np.arange(4) % 2)
    np.array([0, 1, label, 1], np.int64).tofile(tmp_path / "s" / "labels.bin")
    with pytest.raises(StoreError, match="negative class indices"):
        ImageStore.open(tmp_path / "s")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_forged_floats_are_refused(tmp_path, value):
    ImageStore.build(np.zeros((4, 5), np.float32), tmp_path / "s")
    np.full((4, 5), value, np.float32).tofile(tmp_path / "s" / "pixels.bin")
    with pytest.raises(StoreError, match="NaN or an infinity"):
        ImageStore.open(tmp_path / "s")


def test_terminal_control_codes_are_escaped(tmp_path):
    names = ["\x1b[31mred", "two\nlines"]
    store = ImageStore.build(array(0, (4, 4, 4)), tmp_path / "s", np.arange(4) % 2)
    forge(store.path, source="\x1b]0;title\x07", class_names=names)
    opened = ImageStore.open(store.path)
    assert opened.manifest.source == "\\x1b]0;title\\x07"
    assert opened.class_names == ["\\x1b[31mred", "two\\nlines"]
    with pytest.raises(StoreError) as raised:
        ImageStore.open(tmp_path / "no\x1b[31m\nstore")
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("name", ["factor", "factor-of-all"])
@pytest.mark.parametrize(
    "change", [("eigenvectors", np.zeros((2, 2))), ("eigenvalues", -np.ones(5)), ("mean", "gone")]
)
def test_forged_factor_is_recomputed(tmp_path, name, change):
    store = ImageStore.build(array(0, (6, 4, 4)), tmp_path / "s")
    key, value = change
    forged = store.factor().tensors()
    if isinstance(value, str):
        del forged[key]
    else:
        forged[key] = value
    path = store.artifacts.path(name)
    path.write_bytes(store.artifacts.body(forged, {"of": "6"}))  # anyone can compute a valid digest
    forge(tmp_path / "s", files={path.name: vars(file_record(path))})
    recomputed = ImageStore.open(tmp_path / "s").factor()
    assert np.array_equal(recomputed.eigenvectors, store.factor().eigenvectors)
