"""The index holds every image's coordinates; interrupted builds and damaged files are refused."""

import json
import os
import pickle
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
from golddiff.supports.index import image_index
from golddiff.supports.index.image_index import Index
from golddiff.system.errors import StoreError


def test_the_index_holds_the_coordinates_of_every_image(indexed):
    expected, lengths = indexed.blocks.compress(indexed.store.values(np.arange(indexed.store.n)))
    # The matrix product of a larger batch may round a value near a half differently.
    assert np.abs(indexed.numbers.astype(int) - expected).max() <= 1
    assert (indexed.numbers != expected).mean() < 1e-4
    assert np.allclose(indexed.lengths, lengths, atol=1e-2)


def test_the_index_does_not_depend_on_the_size_of_a_piece(make_store, smooth_images, monkeypatch):
    images = smooth_images(600, (1, 12, 12))
    first = Index.build(make_store(images))
    monkeypatch.setattr(image_index, "PIECE", 4 * 144 * 50)
    second = Index.build(make_store(images))
    assert np.abs(first.numbers.astype(int) - second.numbers).max() <= 1
    assert (first.numbers != second.numbers).mean() < 1e-4


def test_all_files_of_an_indexed_store_have_the_same_permissions(make_store, smooth_images):
    index = Index.build(make_store(smooth_images(60, (1, 12, 12))))
    files = [path for path in index.store.path.rglob("*") if path.is_file()]
    assert len({path.stat().st_mode for path in files}) == 1


@pytest.mark.parametrize("n", [1, 2, 300])
def test_equal_images_have_equal_finite_coordinates(make_store, n):
    index = Index.build(make_store(torch.full((n, 3, 20, 20), 77, dtype=torch.uint8)))
    assert np.isfinite(index.blocks.basis).all()
    assert (index.numbers == index.numbers[0]).all()


def test_images_of_zeros_have_finite_coordinates(make_store):
    index = Index.build(make_store(torch.zeros(5, 4, 8, 8)))
    assert np.isfinite(index.blocks.unit)
    assert not index.stored.values(np.arange(5)).any()


def test_float_points_can_be_indexed(make_store):
    points = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    assert Index.build(make_store(points)).numbers.shape == (500, 2)


def test_an_interrupted_build_leaves_nothing_behind(make_store, smooth_images, monkeypatch):
    store = make_store(smooth_images(900, (1, 12, 12)))
    monkeypatch.setattr(image_index, "PIECE", 4 * 144 * 100)
    before = sorted(path.name for path in store.path.iterdir())

    def stop(done, total):
        if done == 400:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Index.build(store, watch=stop)
    assert sorted(path.name for path in store.path.iterdir()) == before
    with pytest.raises(StoreError, match="has none yet"):
        Index.open(store)


def test_a_killed_build_leaves_no_index_and_the_next_one_succeeds(make_store, smooth_images):
    store = make_store(smooth_images(2000, (1, 12, 12)))
    code = f"""
        import os, signal
        from golddiff import ImageStore
        from golddiff.supports.index import image_index
        from golddiff.supports.index.image_index import Index
        image_index.PIECE = 4 * 144 * 100
        def stop(done, total):
            if done >= 700: os.kill(os.getpid(), signal.SIGKILL)
        Index.build(ImageStore.open({str(store.path)!r}), watch=stop)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(StoreError, match="has none yet"):
        Index.open(store)
    Index.build(store).check_contents()
    assert not list(store.path.glob(".index*"))


@pytest.fixture
def copy(indexed, tmp_path):
    """A copy of the indexed store, which a test may damage."""
    shutil.copytree(indexed.store.path, tmp_path / "copy")
    return ImageStore.open(tmp_path / "copy")


def test_an_index_of_another_store_is_refused(copy, make_store, smooth_images):
    other = make_store(smooth_images(30, (3, 15, 15), seed=1))
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
        Index.open(copy).check_contents()


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
def test_invalid_manifests_are_refused(copy, change):
    path = copy.path / "index" / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match="index"):
        Index.open(copy)


def test_a_file_changed_after_it_was_verified_is_verified_again(make_store, smooth_images):
    index = Index.build(make_store(smooth_images(60, (1, 12, 12))))
    index.check_contents()
    file = index.folder / "numbers.bin"
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(0, 0))
    with pytest.raises(StoreError, match="does not match its checksum"):
        index.check_contents()


def test_the_index_of_a_deleted_store_is_not_built(make_store, smooth_images):
    """Regression: it came back as a folder with an index only, which load and build refused."""
    store = make_store(smooth_images(60, (1, 12, 12)))
    shutil.rmtree(store.path)
    with pytest.raises(StoreError, match="does not exist"):
        Index.build(store)
    assert not store.path.exists()


def test_a_pickled_index_holds_no_images(make_store, smooth_images):
    index = Index.build(make_store(smooth_images(2000, (1, 12, 12))))
    expected = index.numbers.copy()
    pickled = pickle.dumps(index)
    assert len(pickled) < 1000
    assert np.array_equal(pickle.loads(pickled).numbers, expected)


def test_the_sample_for_fitting_blocks_is_limited_in_bytes(make_store, smooth_images, monkeypatch):
    store = make_store(smooth_images(60, (1, 20, 20)))
    fitted, sample_sizes = image_index.fitted, []

    def counted(shape, sample):
        sample_sizes.append(len(sample))
        return fitted(shape, sample)

    monkeypatch.setattr(image_index, "SAMPLE_BYTES", 12 * 400 * 25)
    monkeypatch.setattr(image_index, "fitted", counted)
    Index.build(store).check_contents()
    assert sample_sizes == [25]


def test_a_second_build_at_the_same_time_is_refused(make_store, smooth_images):
    store = make_store(smooth_images(100, (1, 8, 8)))

    def second(done, total):
        with pytest.raises(StoreError, match="another process"):
            Index.build(store)

    Index.build(store, watch=second)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_an_error(make_store, smooth_images):
    store = make_store(smooth_images(100, (1, 8, 8)))
    store.path.chmod(0o555)
    with pytest.raises(StoreError, match="index: cannot write"):
        Index.build(store)


def test_a_file_of_wrong_size_is_refused_even_if_the_manifest_agrees(copy):
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
def test_a_build_stopped_in_its_last_steps_can_be_repeated(
    make_store, smooth_images, monkeypatch, name, after
):
    store = make_store(smooth_images(60, (1, 20, 20)))
    expected = _bytes_of(Index.build(store).folder)
    shutil.rmtree(store.path / "index")
    step, steps = getattr(image_index, name), 0

    def stopped(*arguments):
        nonlocal steps
        steps += 1
        if steps > after:
            raise KeyboardInterrupt
        return step(*arguments)

    monkeypatch.setattr(image_index, name, stopped)
    with pytest.raises(KeyboardInterrupt):
        Index.build(store)
    monkeypatch.undo()
    assert _bytes_of(Index.build(store).folder) == expected


def _bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
