"""Masks cached in a store: they are read back unchanged, and damaged files are ignored."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from golddiff import PCA, ImageStore
from golddiff.estimators import masks
from golddiff.estimators.masks import locality_mask
from golddiff.kernels.mask_tree import (
    LEVELS,
    Additions,
    additions,
    is_valid,
    tree_from_additions,
)
from golddiff.store.artifacts import digest_of
from tests.kernels.test_mask_tree import SHAPES, mask_tree, random_mask

SIGMA, THRESHOLD = 1.5, 0.05
FIELDS = ("level", "start", "stop", "output", "own", "inputs", "columns")


def equal_trees(tree, other):
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in ((getattr(tree, f), getattr(other, f)) for f in FIELDS)
    )


def computed_tree(store, sigma=SIGMA, threshold=THRESHOLD):
    return mask_tree(locality_mask(store.factor(), sigma, threshold), store.shape)


@pytest.fixture
def store(make_store, smooth_images):
    return make_store(smooth_images(300, (3, 9, 10)))


@pytest.fixture
def path(store):
    masks.tree_of(store, SIGMA, THRESHOLD)
    return path_of(store, SIGMA, THRESHOLD)


def path_of(store, sigma, threshold):
    return store.artifacts.path(masks.name_of(sigma, threshold))


def forbid_computing(monkeypatch):
    monkeypatch.setattr(masks, "locality_mask", None)


def test_the_cached_tree_equals_the_computed_one(store, monkeypatch):
    first = masks.tree_of(store, SIGMA, THRESHOLD)
    assert equal_trees(first, computed_tree(store))
    forbid_computing(monkeypatch)
    reopened = ImageStore.open(store.path)
    assert equal_trees(masks.tree_of(reopened, SIGMA, THRESHOLD), first)
    assert reopened.factors._computed == {}  # the factor, 1.2 GB at 64 x 64, is not read
    reopened.verify()


def test_pca_reads_cached_masks(store, queries, monkeypatch):
    x = queries(store, SIGMA)
    first = PCA(store, THRESHOLD)(x, SIGMA)
    forbid_computing(monkeypatch)
    assert np.array_equal(PCA(ImageStore.open(store.path), THRESHOLD)(x, SIGMA), first)


@given(SHAPES, st.floats(0, 0.9), st.integers(0, 99))
def test_a_tree_is_rebuilt_from_the_additions_of_its_nodes(shape, density, seed):
    mask = random_mask(shape, density, seed)
    added = additions(mask, shape)
    assert is_valid(added, shape)
    tree = tree_from_additions(added, shape)
    sets, outputs = [set() for _ in range(LEVELS)], []
    for node in range(len(tree.level)):
        level = tree.level[node]
        new_inputs = set(tree.columns[tree.inputs[tree.start[node] : tree.stop[node]]].tolist())
        inherited = sets[level - 1] if level else set()
        assert not new_inputs & inherited
        sets[level] = inherited | new_inputs
        if tree.output[node] >= 0:
            assert sets[level] == set(np.flatnonzero(mask[:, tree.output[node]]).tolist())
            assert tree.columns[tree.own[node]] == tree.output[node]
            outputs.append(tree.output[node])
    assert sorted(outputs) == list(range(len(mask)))


def test_masks_of_points_are_cached(make_store, monkeypatch):
    store = make_store(np.random.default_rng(0).standard_normal((90, 7)).astype(np.float32))
    first = masks.tree_of(store, 0.5, 0.1)
    forbid_computing(monkeypatch)
    assert equal_trees(masks.tree_of(store, 0.5, 0.1), first)


def rewrite(path, **arrays):
    """Replace the arrays of a file, with a correct digest."""
    with safe_open(path, "numpy") as file:
        metadata = file.metadata() | {"digest": digest_of(arrays)}
    save_file(arrays, path, metadata)


class TestInvalidFilesAreIgnored:
    @pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 9, b"\0" * 100])
    def test_files_that_are_not_safetensors(self, store, path, damage):
        path.write_bytes(damage)
        assert masks.load(store, SIGMA, THRESHOLD) is None
        assert equal_trees(masks.tree_of(store, SIGMA, THRESHOLD), computed_tree(store))
        assert masks.load(store, SIGMA, THRESHOLD) is not None  # rewritten

    def test_files_with_a_changed_byte(self, store, path):
        contents = path.read_bytes()
        first = masks.load(store, SIGMA, THRESHOLD)
        for position in np.linspace(0, len(contents) - 1, 60).astype(int):
            changed = bytearray(contents)
            changed[position] ^= 4
            path.write_bytes(changed)
            loaded = masks.load(store, SIGMA, THRESHOLD)
            # White space in the header may change, the arrays may not.
            assert loaded is None or (
                np.array_equal(loaded.inputs, first.inputs)
                and np.array_equal(loaded.counts, first.counts)
            )

    def test_a_file_of_another_store(self, store, path, make_store, smooth_images):
        other = make_store(smooth_images(300, (3, 9, 10), seed=5))
        masks.tree_of(other, SIGMA, THRESHOLD)
        path.write_bytes(path_of(other, SIGMA, THRESHOLD).read_bytes())
        assert masks.load(store, SIGMA, THRESHOLD) is None

    def test_a_file_of_another_noise_level_or_threshold(self, store, path):
        for sigma, threshold in ((1.6, THRESHOLD), (SIGMA, 0.06)):
            other = path_of(store, sigma, threshold)
            other.write_bytes(path.read_bytes())
            assert masks.load(store, sigma, threshold) is None

    def test_files_of_another_version(self, store, path, monkeypatch):
        monkeypatch.setattr(masks, "VERSION", 99)
        assert masks.load(store, SIGMA, THRESHOLD) is None

    @pytest.mark.parametrize(
        "change",
        [
            lambda c, i: (c, np.where(i == 3, 270, i)),  # an input out of range
            lambda c, i: (c + 1, i),  # more inputs than are listed
            lambda c, i: (c - 1, i),
            lambda c, i: (np.concatenate([[-5, c[0] + c[1] + 5], c[2:]]), i),  # stop before start
            lambda c, i: (c[:-1], i[: c[:-1].sum()]),  # one node missing
            lambda c, i: (c, i[:-1]),
            lambda c, i: (np.full_like(c, 2**31 - 1), i),
        ],
    )
    def test_inconsistent_arrays_with_a_correct_digest(self, store, path, change):
        arrays = load_file(path)
        counts, inputs = change(arrays["counts"].astype(np.int64), arrays["inputs"])
        rewrite(path, counts=counts.astype(np.int32), inputs=inputs.astype(np.uint16))
        assert masks.load(store, SIGMA, THRESHOLD) is None

    @pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8])
    def test_arrays_of_another_dtype(self, store, path, dtype):
        arrays = load_file(path)
        rewrite(path, counts=arrays["counts"], inputs=arrays["inputs"].astype(dtype))
        assert masks.load(store, SIGMA, THRESHOLD) is None

    def test_a_folder_instead_of_a_file(self, store):
        path = path_of(store, SIGMA, THRESHOLD)
        path.mkdir(parents=True)
        assert equal_trees(masks.tree_of(store, SIGMA, THRESHOLD), computed_tree(store))


@pytest.mark.parametrize(
    ("counts", "inputs"),
    [([1, 0], [0]), ([1, 0, 0, 0], [1]), ([-1, 0, 0, 2], [0]), ([2, 0, 0, 0], [0, 0]), ([], [])],
)
def test_inconsistent_additions_are_not_valid(counts, inputs):
    added = Additions(np.array(counts, np.int64), np.array(inputs, np.int32))
    assert not is_valid(added, (1, 1, 1))


class TestSizeLimit:
    def test_the_least_recently_used_masks_are_deleted(self, store, monkeypatch):
        sigmas = [1.0, 2.0, 3.0]
        for age, sigma in enumerate(sigmas):
            masks.tree_of(store, sigma, THRESHOLD)
            os.utime(path_of(store, sigma, THRESHOLD), (1000 + age, 1000 + age))
        masks.tree_of(store, 1.0, THRESHOLD)  # now 2.0 is the least recently used
        sizes = [path_of(store, s, THRESHOLD).stat().st_size for s in sigmas]
        monkeypatch.setattr(masks, "LIMIT", sum(sizes) + min(sizes) // 2)
        masks.tree_of(store, 2.5, THRESHOLD)
        present = [path_of(store, s, THRESHOLD).exists() for s in (*sigmas, 2.5)]
        assert present == [True, False, True, True]

    def test_masks_above_the_size_limit_are_not_cached(self, store, monkeypatch):
        monkeypatch.setattr(masks, "LIMIT", 100)
        assert equal_trees(masks.tree_of(store, SIGMA, THRESHOLD), computed_tree(store))
        assert not path_of(store, SIGMA, THRESHOLD).exists()

    def test_other_files_are_not_deleted(self, store, monkeypatch):
        folder = path_of(store, SIGMA, THRESHOLD).parent
        folder.mkdir()
        (folder / "notes.txt").write_bytes(b"x" * 10_000)
        masks.tree_of(store, 1.0, THRESHOLD)
        size = path_of(store, 1.0, THRESHOLD).stat().st_size
        monkeypatch.setattr(masks, "LIMIT", int(1.5 * size))
        masks.tree_of(store, 1.1, THRESHOLD)
        assert (folder / "notes.txt").exists()
        assert not path_of(store, 1.0, THRESHOLD).exists()


def test_masks_are_computed_where_the_folder_cannot_be_written(store, monkeypatch):
    # A file in place of the folder stops every user, the superuser too.
    (store.path / masks.FOLDER).write_bytes(b"")
    assert equal_trees(masks.tree_of(store, SIGMA, THRESHOLD), computed_tree(store))
    assert masks.load(store, SIGMA, THRESHOLD) is None


def test_concurrent_writers_leave_one_complete_file(store):
    trees, expected = [], computed_tree(store)
    threads = [
        threading.Thread(
            target=lambda: trees.append(
                masks.tree_of(ImageStore.open(store.path), SIGMA, THRESHOLD)
            )
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trees) == 6
    assert all(equal_trees(tree, expected) for tree in trees)
    assert masks.load(store, SIGMA, THRESHOLD) is not None
    assert [p.name for p in (store.path / masks.FOLDER).iterdir()] == [
        path_of(store, SIGMA, THRESHOLD).name
    ]


def unit_shares(store):
    return PCA(store, THRESHOLD, share="seamless").ready(SIGMA).shares


def units_path(store):
    (path,) = (store.path / masks.FOLDER).glob("*-units-*")
    return path


def test_masks_of_units_are_computed_once(store, monkeypatch):
    first = unit_shares(store)
    assert units_path(store).is_file()
    monkeypatch.setattr(masks, "unit_counts", None)
    assert np.array_equal(unit_shares(ImageStore.open(store.path)), first)


def test_invalid_masks_of_units_and_those_of_another_factor_are_recomputed(store):
    first, path = unit_shares(store), units_path(store)
    contents = path.read_bytes()
    (counts,) = load_file(path).values()
    name = path.relative_to(store.path).with_suffix("").as_posix()
    head = store.artifacts.head(name)
    for wrong in (counts[:-1], counts.astype(np.int64), np.full_like(counts, 255)):
        store.artifacts.save(name, {"counts": wrong}, head)
        assert np.array_equal(unit_shares(ImageStore.open(store.path)), first)
        assert path.read_bytes() == contents
    store.factors.estimate(50)
    assert not np.array_equal(unit_shares(ImageStore.open(store.path)), first)


def test_cached_masks_of_units_need_no_factor(store, monkeypatch):
    monkeypatch.setattr("golddiff.store.factors.LARGE", 100)
    monkeypatch.setattr("golddiff.store.factors.SAMPLE_SIZE", 40)
    first, reopened = unit_shares(store), ImageStore.open(store.path)
    monkeypatch.setattr(ImageStore, "_make_factor", None)
    assert np.array_equal(unit_shares(reopened), first)
