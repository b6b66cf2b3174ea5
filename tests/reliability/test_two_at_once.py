"""Two processes at one store: one wins, the other is told, and a crash leaves no lock."""

import os
import shutil

import numpy as np
import pytest
import torch

from golddiff import Optimal, sample
from golddiff.store.images import ImageStore
from golddiff.supports.index import Index
from golddiff.system import folders
from golddiff.system.errors import StoreError
from golddiff.system.files import locked


@pytest.fixture
def pixels(smooth_images):
    return smooth_images(60, (1, 8, 8)).numpy()


def leftovers(folder, *but):
    return sorted(path.name for path in folder.iterdir() if path.name not in but)


def test_a_second_build_of_a_store_is_told(tmp_path, pixels):
    with locked(tmp_path / ".s.lock", "held"), pytest.raises(StoreError, match="another process"):
        ImageStore.build(pixels, tmp_path / "s")
    ImageStore.build(pixels, tmp_path / "s").verify()
    assert leftovers(tmp_path, "s") == []


def test_a_store_set_aside_by_a_rebuild_that_was_killed_comes_back(tmp_path, pixels):
    """There is a moment between two renames."""
    ImageStore.build(pixels, tmp_path / "s")
    aside = tmp_path / ".s.building-x"
    aside.mkdir()
    os.rename(tmp_path / "s", aside / "old")
    with pytest.raises(ValueError, match="exists already"):
        ImageStore.build(255 - pixels, tmp_path / "s")
    assert ImageStore.open(tmp_path / "s").n == 60
    assert leftovers(tmp_path, "s") == []


def test_a_rebuild_that_is_interrupted_between_two_renames_leaves_the_old_store(
    tmp_path, pixels, monkeypatch
):
    ImageStore.build(pixels, tmp_path / "s")
    rename = os.rename

    def interrupted(old, new):
        if new == tmp_path / "s" and old.name.startswith(".s.building-"):
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(folders.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ImageStore.build(pixels[:9], tmp_path / "s", overwrite=True)
    assert ImageStore.open(tmp_path / "s").n == 60
    assert leftovers(tmp_path, "s") == []


def test_a_store_built_over_a_link_leaves_what_it_led_to(tmp_path, pixels):
    """The link, moved aside, was left in the folder under its hidden name."""
    ImageStore.build(pixels, tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    ImageStore.build(pixels[:9], tmp_path / "link", overwrite=True)
    assert ImageStore.open(tmp_path / "link").n == 9
    assert ImageStore.open(tmp_path / "s").n == 60
    assert leftovers(tmp_path, "s", "link") == []


def test_a_reader_during_a_rebuild_keeps_what_it_opened(tmp_path, pixels):
    store = ImageStore.build(pixels, tmp_path / "s")
    before = store.images()
    ImageStore.build(255 - pixels, tmp_path / "s", overwrite=True)
    assert torch.equal(store.images(), before)
    mean = store.factor().mean  # not the one that lies there now
    np.testing.assert_allclose(mean, before.reshape(len(before), -1).mean(0), atol=1e-5)
    store.artifacts.save("other", {"a": np.zeros(3)})
    ImageStore.open(tmp_path / "s").verify()
    assert ImageStore.open(tmp_path / "s").artifacts.load("other") is None  # of other images
    assert torch.allclose(ImageStore.open(tmp_path / "s").images(), -before, atol=1e-6)


def test_an_index_that_is_replaced_is_never_half_there(tmp_path, pixels, monkeypatch):
    """Found by kills: the old index was taken away file by file, and told as damaged."""
    store = ImageStore.build(pixels, tmp_path / "s")
    Index.build(store)

    def killed(folder, ignore_errors=False):
        if folder.exists():
            next(folder.rglob("*.bin")).unlink()
        raise KeyboardInterrupt

    monkeypatch.setattr(folders.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        Index.build(store)
    monkeypatch.undo()
    Index.open(store).verify()
    Index.build(store).verify()
    assert not list(store.path.glob(".index*"))


def test_two_that_keep_files_with_one_store_lose_neither(tmp_path, pixels):
    ImageStore.build(pixels, tmp_path / "s")
    one, other = ImageStore.open(tmp_path / "s"), ImageStore.open(tmp_path / "s")
    one.artifacts.save("a", {"a": np.zeros(3)})
    other.artifacts.save("b", {"b": np.ones(2)})
    now = ImageStore.open(tmp_path / "s")
    now.verify()
    assert all(now.artifacts.load(name) is not None for name in "ab")


def test_a_store_deleted_while_sampling_is_read_on_and_does_not_come_back(tmp_path, pixels):
    store = ImageStore.build(pixels, tmp_path / "s")
    whole = sample(Optimal(store), 2, steps=3).images
    shutil.rmtree(tmp_path / "s")
    assert torch.equal(sample(Optimal(store), 2, steps=3).images, whole)
    assert store.factor().images == 60
    assert not (tmp_path / "s").exists()
