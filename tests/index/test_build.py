"""The index holds what it says of every image, and is never wrong after a mishap."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

from golddiff import ImageStore
from golddiff.store.manifest import file_record
from golddiff.supports.index import Index
from golddiff.supports.index import indexing as build
from golddiff.system.errors import StoreError


def test_what_is_kept_is_what_blocks_see_of_every_image(indexed):
    kept, lengths = indexed.blocks.compress(indexed.store.values(np.arange(indexed.store.n)))
    # A product of more images at once may round a number that lies between two the other way.
    assert np.abs(indexed.numbers.astype(int) - kept).max() <= 1
    assert (indexed.numbers != kept).mean() < 1e-4
    assert np.allclose(indexed.lengths, lengths, atol=1e-2)


def test_two_builds_are_the_same(make_store, smooth_images, monkeypatch):
    images = smooth_images(600, (1, 12, 12))
    first = Index.build(make_store(images))
    monkeypatch.setattr(build, "PIECE", 4 * 144 * 50)
    second = Index.build(make_store(images))
    assert np.abs(first.numbers.astype(int) - second.numbers).max() <= 1
    assert (first.numbers != second.numbers).mean() < 1e-4


def test_who_may_read_one_file_may_read_all(make_store, smooth_images):
    index = Index.build(make_store(smooth_images(60, (1, 12, 12))))
    files = [path for path in index.store.path.rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1


@pytest.mark.parametrize("n", [1, 2, 300])
def test_few_images_and_equal_images(make_store, n):
    index = Index.build(make_store(torch.full((n, 3, 20, 20), 77, dtype=torch.uint8)))
    assert np.isfinite(index.blocks.basis).all()
    assert (index.numbers == index.numbers[0]).all()


def test_float_points(make_store):
    points = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    assert Index.build(make_store(points)).numbers.shape == (500, 2)


def test_an_interrupted_build_leaves_nothing_behind(make_store, smooth_images, monkeypatch):
    store = make_store(smooth_images(900, (1, 12, 12)))
    monkeypatch.setattr(build, "PIECE", 4 * 144 * 100)
    before = sorted(path.name for path in store.path.iterdir())

    def stop(what, done, total):
        if done == 400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build.build(store, progress=stop)
    assert sorted(path.name for path in store.path.iterdir()) == before
    with pytest.raises(StoreError, match="has none yet"):
        Index.open(store)


def test_a_killed_build_leaves_no_index_and_the_next_is_whole(make_store, smooth_images):
    store = make_store(smooth_images(2000, (1, 12, 12)))
    code = f"""
        import os, signal
        from golddiff import ImageStore
        from golddiff.supports.index import indexing as build
        build.PIECE = 4 * 144 * 100
        def stop(what, done, total):
            if done >= 700: os.kill(os.getpid(), signal.SIGKILL)
        build.build(ImageStore.open({str(store.path)!r}), progress=stop)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(StoreError, match="has none yet"):
        Index.open(store)
    Index.build(store).verify()
    assert not list(store.path.glob(".index*"))


@pytest.fixture
def copy(indexed, tmp_path):
    """The indexed store again, to be damaged."""
    shutil.copytree(indexed.store.path, tmp_path / "copy")
    return ImageStore.open(tmp_path / "copy")


def test_an_index_of_another_store_is_refused(copy, make_store, smooth_images):
    other = make_store(smooth_images(30, (3, 20, 20), seed=1))
    shutil.copytree(copy.path / "index", other.path / "index")
    with pytest.raises(StoreError, match="another store"):
        Index.open(other)


@pytest.mark.parametrize("name", ["numbers.bin", "lengths.bin", "blocks.safetensors"])
def test_damaged_files_are_refused(copy, name):
    path = copy.path / "index" / name
    data = bytearray(path.read_bytes())
    path.write_bytes(data[:-1])
    with pytest.raises(StoreError, match=name):
        Index.open(copy)
    data[-1] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(StoreError, match=name):
        Index.open(copy).verify()


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"format": "x"},
        {"files": {"../a": {}}},
        {"files": {"numbers.bin": {"bytes": 1, "sha256": [1]}}},
        {"files": 3},
    ],
)
def test_other_manifests_are_refused(copy, change):
    path = copy.path / "index" / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match="index"):
        Index.open(copy)


def test_blocks_of_large_images_are_fitted_to_fewer(make_store, smooth_images, monkeypatch):
    store, fitted, seen = make_store(smooth_images(60, (1, 20, 20))), build.blocks.fitted, []

    def counted(shape, sample):
        seen.append(len(sample))
        return fitted(shape, sample)

    monkeypatch.setattr(build, "SAMPLE_BYTES", 12 * 400 * 25)
    monkeypatch.setattr(build.blocks, "fitted", counted)
    Index.build(store).verify()
    assert seen == [25]


def test_one_build_at_a_time(make_store, smooth_images):
    store = make_store(smooth_images(100, (1, 8, 8)))

    def second(what, done, total):
        with pytest.raises(StoreError, match="another process"):
            build.build(store)

    build.build(store, progress=second)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(make_store, smooth_images):
    store = make_store(smooth_images(100, (1, 8, 8)))
    store.path.chmod(0o555)
    with pytest.raises(StoreError, match="index: cannot write"):
        Index.build(store)


def test_a_file_of_another_size_that_the_manifest_agrees_with_is_refused(copy):
    path, manifest = copy.path / "index" / "lengths.bin", copy.path / "index" / "index.json"
    path.write_bytes(path.read_bytes()[:-8])
    body = json.loads(manifest.read_text())
    body["files"]["lengths.bin"] = vars(file_record(path))
    manifest.write_text(json.dumps(body))
    with pytest.raises(StoreError, match=r"lengths.bin is missing or has another size"):
        Index.open(copy)


@pytest.mark.parametrize(
    ("name", "after"), [("file_record", 0), ("file_record", 1), ("file_record", 2), ("save", 0)]
)
def test_stopped_among_its_last_steps_it_is_built_rightly_again(
    make_store, smooth_images, monkeypatch, name, after
):
    store = make_store(smooth_images(60, (1, 20, 20)))
    expected = _bytes_of(Index.build(store).folder)
    shutil.rmtree(store.path / "index")
    step, steps = getattr(build, name), 0

    def stopped(*given):
        nonlocal steps
        steps += 1
        if steps > after:
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(build, name, stopped)
    with pytest.raises(KeyboardInterrupt):
        build.build(store)
    monkeypatch.undo()
    assert _bytes_of(Index.build(store).folder) == expected


def _bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
