"""Concurrent use of a store: one process wins, the other waits or fails; crashes are safe."""

import os
import queue
import shutil
import threading

import numpy as np
import pytest
import torch

from golddiff import Optimal, sample
from golddiff.sources.source_options import SourceOptions
from golddiff.store.build import build
from golddiff.store.cache import cache_folder, cache_name, cached_store
from golddiff.store.images import ImageStore
from golddiff.supports.index.image_index import Index
from golddiff.system import folders
from golddiff.system.errors import StoreError
from golddiff.system.files import locked


@pytest.fixture
def pixels(smooth_images):
    return smooth_images(60, (1, 8, 8)).numpy()


def leftovers(folder, *expected):
    return sorted(path.name for path in folder.iterdir() if path.name not in expected)


def test_concurrent_build_of_a_store_is_refused(tmp_path, pixels):
    with locked(tmp_path / ".s.lock", "held"), pytest.raises(StoreError, match="another process"):
        ImageStore.build(pixels, tmp_path / "s")
    ImageStore.build(pixels, tmp_path / "s").verify()
    assert leftovers(tmp_path, "s") == []


def test_a_cached_store_built_by_another_process_meanwhile_is_opened(tmp_path, pixels, monkeypatch):
    def build_second(source, path, **options):
        build(source, path, **options)
        build(source, path, **options)

    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path))
    monkeypatch.setattr("golddiff.store.build.build", build_second)
    assert cached_store(pixels, SourceOptions()).n == 60


def test_a_cached_store_that_another_process_builds_is_waited_for(tmp_path, pixels, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    path = cache_folder() / cache_name(pixels, SourceOptions())
    path.parent.mkdir()
    stores, lines = [], queue.Queue()
    second = threading.Thread(
        target=lambda: stores.append(cached_store(pixels, SourceOptions(), say=lines.put))
    )
    with locked(path.with_name(f".{path.name}.lock"), "held"):
        second.start()
        assert "building a store" in lines.get(timeout=30)
        assert "another process" in lines.get(timeout=30)
        ImageStore.build(pixels, tmp_path / "finished")
        os.rename(tmp_path / "finished", path)
    second.join(30)
    assert stores[0].n == 60
    assert "using the store" in lines.get(timeout=30)


def test_waiting_for_another_process_ends_with_an_error(tmp_path, pixels, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path))
    monkeypatch.setattr(folders, "PATIENCE", 0)
    path = cache_folder() / cache_name(pixels, SourceOptions())
    lock = path.with_name(f".{path.name}.lock")
    with locked(lock, "held"), pytest.raises(StoreError, match=f"holds {lock}; stop it"):
        cached_store(pixels, SourceOptions())


def test_store_comes_back_after_a_rebuild_killed_between_two_renames(tmp_path, pixels):
    ImageStore.build(pixels, tmp_path / "s")
    aside = tmp_path / ".s.building-x"
    aside.mkdir()
    os.rename(tmp_path / "s", aside / "old")
    with pytest.raises(ValueError, match="exists already"):
        ImageStore.build(255 - pixels, tmp_path / "s")
    assert ImageStore.open(tmp_path / "s").n == 60
    assert leftovers(tmp_path, "s") == []


def test_rebuild_interrupted_between_two_renames_keeps_the_old_store(tmp_path, pixels, monkeypatch):
    ImageStore.build(pixels, tmp_path / "s")
    rename = os.rename

    def interrupted(old, new):
        if new == tmp_path / "s" and old.name == "new":
            raise KeyboardInterrupt
        rename(old, new)

    monkeypatch.setattr(folders.os, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ImageStore.build(pixels[:9], tmp_path / "s", overwrite=True)
    assert ImageStore.open(tmp_path / "s").n == 60
    assert leftovers(tmp_path, "s") == []


def test_store_built_over_a_link_keeps_the_target_of_the_link(tmp_path, pixels):
    """Regression: the replaced link was left in the folder under a hidden name."""
    ImageStore.build(pixels, tmp_path / "s")
    (tmp_path / "link").symlink_to(tmp_path / "s")
    ImageStore.build(pixels[:9], tmp_path / "link", overwrite=True)
    assert ImageStore.open(tmp_path / "link").n == 9
    assert ImageStore.open(tmp_path / "s").n == 60
    assert leftovers(tmp_path, "s", "link") == []


def test_open_store_keeps_its_images_during_a_rebuild(tmp_path, pixels):
    store = ImageStore.build(pixels, tmp_path / "s")
    before = store.images()
    ImageStore.build(255 - pixels, tmp_path / "s", overwrite=True)
    assert torch.equal(store.images(), before)
    mean = store.factor().mean  # not the mean of the rebuilt store
    np.testing.assert_allclose(mean, before.reshape(len(before), -1).mean(0), atol=1e-5)
    store.artifacts.save("other", {"a": np.zeros(3)})
    ImageStore.open(tmp_path / "s").verify()
    assert ImageStore.open(tmp_path / "s").artifacts.load("other") is None  # for the old images
    assert torch.allclose(ImageStore.open(tmp_path / "s").images(), -before, atol=1e-6)


def test_index_replacement_is_atomic(tmp_path, pixels, monkeypatch):
    """Regression: a kill while the old index was deleted left a damaged index."""
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
    Index.open(store).check_contents()
    Index.build(store).check_contents()
    assert not list(store.path.glob(".index*"))


def test_artifacts_saved_by_two_handles_are_both_kept(tmp_path, pixels):
    ImageStore.build(pixels, tmp_path / "s")
    first, second = ImageStore.open(tmp_path / "s"), ImageStore.open(tmp_path / "s")
    first.artifacts.save("a", {"a": np.zeros(3)})
    second.artifacts.save("b", {"b": np.ones(2)})
    reopened = ImageStore.open(tmp_path / "s")
    reopened.verify()
    assert all(reopened.artifacts.load(name) is not None for name in "ab")


def test_deleted_store_stays_readable_and_is_not_recreated(tmp_path, pixels):
    store = ImageStore.build(pixels, tmp_path / "s")
    images = sample(Optimal(store), 2, steps=3).images
    shutil.rmtree(tmp_path / "s")
    assert torch.equal(sample(Optimal(store), 2, steps=3).images, images)
    assert store.factor().images == 60
    assert not (tmp_path / "s").exists()
