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
from golddiff.supports.index.indexing import PARTIAL, STATE
from golddiff.system.errors import StoreError
from golddiff.system.files import locked
from reliability.fuzz.bundle import unbundle, written
from reliability.fuzz.stores import interrupted, sound_store


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
    """A store that came with links in an unfinished index wrote over what they led to."""
    written(sound_store(), tmp_path / "s")
    written(unbundle(interrupted()[-1]), tmp_path / "s" / PARTIAL)
    target = outside / "precious"
    target.write_bytes(b"precious")
    for path in list((tmp_path / "s" / PARTIAL).glob("*.raw")):
        path.unlink()
        path.symlink_to(target)
    Index.build(ImageStore.open(tmp_path / "s")).verify()
    assert target.read_bytes() == b"precious"


def test_an_unfinished_index_that_is_a_link_is_not_followed(tmp_path, outside):
    written(sound_store(), tmp_path / "s")
    written(unbundle(interrupted()[0]), outside)
    before = sorted(path.read_bytes() for path in outside.iterdir())
    (tmp_path / "s" / PARTIAL).symlink_to(outside)
    Index.build(ImageStore.open(tmp_path / "s")).verify()
    assert sorted(path.read_bytes() for path in outside.iterdir()) == before


def test_a_lock_that_is_a_link_is_not_followed(tmp_path, outside):
    (tmp_path / "lock").symlink_to(outside / "made")
    with pytest.raises(OSError), locked(tmp_path / "lock", "held"):  # noqa: PT011
        pass
    assert not (outside / "made").exists()


@pytest.mark.parametrize(
    "change",
    [
        *({"rows": rows} for rows in (-1, "x", 13, 2**70, None)),
        {"version": 0},
    ],
    ids=str,
)
def test_the_state_of_an_unfinished_index_is_checked(tmp_path, change):
    """Found by fuzzing: what stood there was believed."""
    written(sound_store(), tmp_path / "s")
    store = ImageStore.open(tmp_path / "s")
    expected = Index.build(store)
    wanted = {p.name: p.read_bytes() for p in (store.path / "index").iterdir()}
    written(unbundle(interrupted()[0]), tmp_path / "s" / PARTIAL)
    path = tmp_path / "s" / PARTIAL / STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    Index.build(store)
    assert {p.name: p.read_bytes() for p in (store.path / "index").iterdir()} == wanted
    expected.verify()


def test_what_is_missing_of_an_unfinished_index_is_made(tmp_path):
    written(sound_store(), tmp_path / "s")
    store = ImageStore.open(tmp_path / "s")
    wanted = Index.build(store).numbers.copy()
    written(unbundle(interrupted()[0]), tmp_path / "s" / PARTIAL)
    numbers = tmp_path / "s" / PARTIAL / "numbers.bin"
    numbers.write_bytes(numbers.read_bytes()[:-5])
    assert np.array_equal(Index.build(store).numbers, wanted)


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
