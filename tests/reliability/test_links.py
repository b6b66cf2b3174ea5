"""Links in a store's folder cause no read, write or deletion outside it."""

import json
import os

import numpy as np
import pytest

from golddiff.cluster.listing import Listing, ShardRecord
from golddiff.estimators import masks
from golddiff.store.images import ImageStore
from golddiff.store.manifest import _digest
from golddiff.supports.index.image_index import Index
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


def replace_by_link(path, outside):
    """Move a file to ``outside`` and leave a link in its place."""
    os.rename(path, outside / path.name)
    path.symlink_to(outside / path.name)


def test_manifest_that_is_a_link_is_refused(store, outside):
    replace_by_link(store.path / "manifest.json", outside)
    with pytest.raises(StoreError, match="symbolic link that leads out"):
        ImageStore.open(store.path)


@pytest.mark.parametrize("name", ["blocks.safetensors", "numbers.bin"])
def test_index_files_that_are_links_are_refused(store, outside, name):
    Index.build(store)
    replace_by_link(store.path / "index" / name, outside)
    with pytest.raises(StoreError, match="symbolic link that leads out"):
        Index.open(store)


def test_masks_and_artifacts_that_are_links_are_ignored(store, outside):
    masks.tree_of(store, 1.0, 0.02)
    assert masks.load(store, 1.0, 0.02) is not None
    replace_by_link(store.artifacts.path(masks.name_of(1.0, 0.02)), outside)
    assert masks.load(store, 1.0, 0.02) is None
    store.artifacts.save("x", {"a": np.zeros(2)})
    assert store.artifacts.load("x") is not None
    replace_by_link(store.artifacts.path("x"), outside)
    assert store.artifacts.load("x") is None


def test_mask_cache_deletes_nothing_behind_a_link(store, outside, monkeypatch):
    """Regression: with a link as cache folder, files behind it were deleted, oldest first."""
    (outside / "weights.safetensors").write_bytes(bytes(1000))
    (store.path / masks.FOLDER).symlink_to(outside)
    monkeypatch.setattr(masks, "LIMIT", 10**6)
    masks.tree_of(store, 1.0, 0.02)
    (outside / "more.safetensors").write_bytes(bytes(10**6))
    masks.tree_of(store, 2.0, 0.02)
    assert sorted(p.name for p in outside.iterdir()) == ["more.safetensors", "weights.safetensors"]


def test_building_an_index_never_writes_through_links(tmp_path, outside):
    """A store may hold an unfinished index with links, or an index that is a link itself."""
    target = outside / "precious"
    target.write_bytes(b"precious")
    (outside / "old").mkdir()
    left = ".index.building-x"
    for name, link_path in (("a", f"{left}/numbers.bin"), ("b", left), ("c", "index")):
        written(sound_store(), tmp_path / name)
        link = tmp_path / name / link_path
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(target if link_path.endswith(".bin") else outside)
        Index.build(ImageStore.open(tmp_path / name)).check_contents()
        assert not list((tmp_path / name).glob(".index*"))
    assert sorted(path.name for path in outside.iterdir()) == ["old", "precious"]
    assert target.read_bytes() == b"precious"


def test_lock_that_is_a_link_is_not_followed(tmp_path, outside):
    (tmp_path / "lock").symlink_to(outside / "made")
    with pytest.raises(OSError), locked(tmp_path / "lock", "held"):  # noqa: PT011
        pass
    assert not (outside / "made").exists()


@pytest.mark.parametrize("path", ["/etc", "../other", "a/../../b", "s3://bucket/a", "", "\\..\\a"])
def test_list_with_shards_outside_its_folder_is_refused(tmp_path, path):
    Listing([ShardRecord("a", 3, "x")]).write(tmp_path)
    file = tmp_path / "shards.json"
    body = json.loads(file.read_text())
    body.pop("digest")
    body["shards"][0]["path"] = path
    file.write_text(json.dumps(body | {"digest": _digest(body)}))
    with pytest.raises(StoreError, match="outside its folder"):
        Listing.of(tmp_path)
