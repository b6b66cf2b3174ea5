"""Nothing in a store's folder leads reading, writing or removing out of it."""

import json
import os

import numpy as np
import pytest

from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.estimators import kept_masks
from golddiff.store.images import ImageStore
from golddiff.store.manifest import _digest
from golddiff.supports.index import Index
from golddiff.system.errors import StoreError
from golddiff.system.files import locked
from reliability.fuzz.bundle import written
from reliability.fuzz.stores import sound_store


@pytest.fixture
def store(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 3, 16, 16), dtype=np.uint8)
    return ImageStore.build(pixels, tmp_path / "s")


@pytest.fixture
def outside(tmp_path):
    (tmp_path / "outside").mkdir()
    return tmp_path / "outside"


def moved(path, outside):
    """Put a file elsewhere and a link in its place."""
    os.rename(path, outside / path.name)
    path.symlink_to(outside / path.name)


def test_a_manifest_is_no_link(store, outside):
    moved(store.path / "manifest.json", outside)
    with pytest.raises(StoreError, match="symbolic link that leads out"):
        ImageStore.open(store.path)


@pytest.mark.parametrize("name", ["blocks.safetensors", "numbers.bin"])
def test_an_index_s_files_do_not_lead_out(store, outside, name):
    Index.build(store)
    moved(store.path / "index" / name, outside)
    with pytest.raises(StoreError, match="symbolic link that leads out"):
        Index.open(store)


def test_masks_and_other_artifacts_are_made_again(store, outside):
    kept_masks.tree_of(store, 1.0, 0.02)
    assert kept_masks.load(store, 1.0, 0.02) is not None
    moved(store.artifacts.path(kept_masks.name_of(1.0, 0.02)), outside)
    assert kept_masks.load(store, 1.0, 0.02) is None
    store.artifacts.save("x", {"a": np.zeros(2)})
    assert store.artifacts.load("x") is not None
    moved(store.artifacts.path("x"), outside)
    assert store.artifacts.load("x") is None


def test_masks_of_others_are_not_removed_to_make_room(store, outside, monkeypatch):
    """A link of the folder's name led to files that were then removed, oldest first."""
    (outside / "weights.safetensors").write_bytes(bytes(1000))
    (store.path / kept_masks.FOLDER).symlink_to(outside)
    monkeypatch.setattr(kept_masks, "LIMIT", 10**6)
    kept_masks.tree_of(store, 1.0, 0.02)
    (outside / "more.safetensors").write_bytes(bytes(10**6))
    kept_masks.tree_of(store, 2.0, 0.02)
    assert sorted(p.name for p in outside.iterdir()) == ["more.safetensors", "weights.safetensors"]


def test_building_an_index_writes_through_no_link(tmp_path, outside):
    """A store may come with an unfinished index of links, or one that is a link itself."""
    target = outside / "precious"
    target.write_bytes(b"precious")
    (outside / "old").mkdir()
    left = ".index.building-x"
    for name, place in (("a", f"{left}/numbers.bin"), ("b", left), ("c", "index")):
        written(sound_store(), tmp_path / name)
        link = tmp_path / name / place
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(target if place.endswith(".bin") else outside)
        Index.build(ImageStore.open(tmp_path / name)).verify()
        assert not list((tmp_path / name).glob(".index*"))
    assert sorted(path.name for path in outside.iterdir()) == ["old", "precious"]
    assert target.read_bytes() == b"precious"


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, outside):
    (tmp_path / "lock").symlink_to(outside / "made")
    with pytest.raises(OSError), locked(tmp_path / "lock", "held"):  # noqa: PT011
        pass
    assert not (outside / "made").exists()


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b", "s3://bucket/a", "", "\\..\\a"])
def test_a_list_names_no_shards_elsewhere(tmp_path, path):
    Listing([ShardRecord("a", 3, "x")]).write(tmp_path)
    file = tmp_path / "shards.json"
    body = json.loads(file.read_text())
    body.pop("digest")
    body["shards"][0]["path"] = path
    file.write_text(json.dumps(body | {"digest": _digest(body)}))
    with pytest.raises(StoreError, match="outside its folder"):
        Listing.of(tmp_path)
