"""Masks kept with a store: found again as they were made, and never trusted where not sound."""

import os
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from golddiff import PCA, ImageStore
from golddiff.estimators import kept_masks
from golddiff.estimators.masks import locality_mask
from golddiff.kernels.mask_tree import (
    LEVELS,
    Additions,
    additions,
    check,
    mask_tree,
    tree_from_additions,
)
from golddiff.store.artifacts import digest_of
from tests.kernels.test_mask_tiles import SHAPES, random_mask

SIGMA, THRESHOLD = 1.5, 0.05
FIELDS = ("level", "start", "stop", "output", "own", "inputs", "columns")


def same(one, other):
    return all(
        np.array_equal(a, b) and a.dtype == b.dtype
        for a, b in ((getattr(one, f), getattr(other, f)) for f in FIELDS)
    )


def direct(store, sigma=SIGMA, threshold=THRESHOLD):
    return mask_tree(locality_mask(store.factor(), sigma, threshold), store.shape)


@pytest.fixture(autouse=True)
def _keep_small_ones_too(monkeypatch):
    monkeypatch.setattr(kept_masks, "MIN_VALUES", 1)


@pytest.fixture
def store(make_store, smooth_images):
    return make_store(smooth_images(300, (3, 9, 10)))


@pytest.fixture
def kept(store):
    kept_masks.tree_of(store, SIGMA, THRESHOLD)
    return path_in(store, SIGMA, THRESHOLD)


def path_in(store, sigma, threshold):
    return store.artifacts.path(kept_masks.name_of(sigma, threshold))


def must_not_be_made(monkeypatch):
    monkeypatch.setattr(kept_masks, "locality_mask", None)


def test_what_is_kept_is_the_tree_that_was_made(store, monkeypatch):
    first = kept_masks.tree_of(store, SIGMA, THRESHOLD)
    assert same(first, direct(store))
    must_not_be_made(monkeypatch)
    again = ImageStore.open(store.path)
    assert same(kept_masks.tree_of(again, SIGMA, THRESHOLD), first)
    assert again.factors._computed == {}  # 1.2 GB at 64 x 64, not read for this
    again.verify()


def test_pca_takes_them(store, queries, monkeypatch):
    x = queries(store, SIGMA)
    first = PCA(store, THRESHOLD)(x, SIGMA)
    must_not_be_made(monkeypatch)
    assert np.array_equal(PCA(ImageStore.open(store.path), THRESHOLD)(x, SIGMA), first)


@given(SHAPES, st.floats(0, 0.9), st.integers(0, 99))
def test_a_tree_is_what_its_nodes_add_and_the_shape(shape, density, seed):
    mask = random_mask(shape, density, seed)
    added = additions(mask, shape)
    check(added, shape)
    tree = tree_from_additions(added, shape)
    sets, ends = [set() for _ in range(LEVELS)], []
    for node in range(len(tree.level)):
        level = tree.level[node]
        mine = set(tree.columns[tree.inputs[tree.start[node] : tree.stop[node]]].tolist())
        above = sets[level - 1] if level else set()
        assert not mine & above
        sets[level] = above | mine
        if tree.output[node] >= 0:
            assert sets[level] == set(np.flatnonzero(mask[:, tree.output[node]]).tolist())
            assert tree.columns[tree.own[node]] == tree.output[node]
            ends.append(tree.output[node])
    assert sorted(ends) == list(range(len(mask)))


def test_points_are_images_of_one_row(make_store, monkeypatch):
    store = make_store(np.random.default_rng(0).standard_normal((90, 7)).astype(np.float32))
    first = kept_masks.tree_of(store, 0.5, 0.1)
    must_not_be_made(monkeypatch)
    assert same(kept_masks.tree_of(store, 0.5, 0.1), first)


class TestNotTrusted:
    @pytest.mark.parametrize("damage", [b"", b"{", b"\xff" * 9, b"\0" * 100])
    def test_other_bytes(self, store, kept, damage):
        kept.write_bytes(damage)
        assert kept_masks.load(store, SIGMA, THRESHOLD) is None
        assert same(kept_masks.tree_of(store, SIGMA, THRESHOLD), direct(store))
        assert kept_masks.load(store, SIGMA, THRESHOLD) is not None  # made whole again

    @pytest.mark.parametrize("part", [0.1, 0.5, 0.999])
    def test_a_part_of_the_file(self, store, kept, part):
        whole = kept.read_bytes()
        kept.write_bytes(whole[: int(part * len(whole))])
        assert kept_masks.load(store, SIGMA, THRESHOLD) is None

    def test_any_changed_byte(self, store, kept):
        whole = kept.read_bytes()
        first = kept_masks.load(store, SIGMA, THRESHOLD)
        for at in np.linspace(0, len(whole) - 1, 60).astype(int):
            changed = bytearray(whole)
            changed[at] ^= 4
            kept.write_bytes(changed)
            found = kept_masks.load(store, SIGMA, THRESHOLD)
            # White space in the header may change; what is read may not.
            assert found is None or (
                np.array_equal(found.inputs, first.inputs)
                and np.array_equal(found.counts, first.counts)
            )

    def test_a_file_of_another_store(self, store, kept, make_store, smooth_images):
        other = make_store(smooth_images(300, (3, 9, 10), seed=5))
        kept_masks.tree_of(other, SIGMA, THRESHOLD)
        kept.write_bytes(path_in(other, SIGMA, THRESHOLD).read_bytes())
        assert kept_masks.load(store, SIGMA, THRESHOLD) is None

    def test_a_file_of_another_noise_level_or_threshold(self, store, kept):
        for sigma, threshold in ((1.6, THRESHOLD), (SIGMA, 0.06)):
            other = path_in(store, sigma, threshold)
            other.write_bytes(kept.read_bytes())
            assert kept_masks.load(store, sigma, threshold) is None

    def test_another_version(self, store, kept, monkeypatch):
        monkeypatch.setattr(kept_masks, "MASK_VERSION", 99)
        assert kept_masks.load(store, SIGMA, THRESHOLD) is None

    @pytest.mark.parametrize(
        "change",
        [
            lambda c, i: (c, np.where(i == 3, 270, i)),  # an input that is not there
            lambda c, i: (c + 1, i),  # more than there are
            lambda c, i: (c - 1, i),
            lambda c, i: (np.concatenate([[-5, c[0] + c[1] + 5], c[2:]]), i),  # stop before start
            lambda c, i: (c[:-1], i[: c[:-1].sum()]),  # a node too few
            lambda c, i: (c, i[:-1]),
            lambda c, i: (np.full_like(c, 2**31 - 1), i),
        ],
    )
    def test_forged_arrays_with_a_right_digest(self, store, kept, change):
        from safetensors import safe_open

        with safe_open(kept, "numpy") as file:
            about = file.metadata()
        found = load_file(kept)
        counts, inputs = change(found["counts"].astype(np.int64), found["inputs"])
        counts, inputs = counts.astype(np.int32), inputs.astype(np.uint16)
        about["digest"] = digest_of({"counts": counts, "inputs": inputs})
        save_file({"counts": counts, "inputs": inputs}, kept, about)
        assert kept_masks.load(store, SIGMA, THRESHOLD) is None

    @pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8])
    def test_arrays_of_another_kind(self, store, kept, kind):
        from safetensors import safe_open

        with safe_open(kept, "numpy") as file:
            about = file.metadata()
        found = load_file(kept)
        counts, inputs = found["counts"], found["inputs"].astype(kind)
        about["digest"] = digest_of({"counts": counts, "inputs": inputs})
        save_file({"counts": counts, "inputs": inputs}, kept, about)
        assert kept_masks.load(store, SIGMA, THRESHOLD) is None

    def test_a_folder_in_its_place(self, store):
        path = path_in(store, SIGMA, THRESHOLD)
        path.mkdir(parents=True)
        assert same(kept_masks.tree_of(store, SIGMA, THRESHOLD), direct(store))


@pytest.mark.parametrize(
    ("counts", "inputs"),
    [([1, 0], [0]), ([1, 0, 0, 0], [1]), ([-1, 0, 0, 2], [0]), ([2, 0, 0, 0], [0, 0]), ([], [])],
)
def test_check_refuses(counts, inputs):
    with pytest.raises(ValueError, match=r"additions|counts|inputs"):
        check(Additions(np.array(counts, np.int64), np.array(inputs, np.int32)), (1, 1, 1))


class TestRoom:
    def test_those_not_used_for_longest_go(self, store, monkeypatch):
        sigmas = [1.0, 2.0, 3.0]
        for age, sigma in enumerate(sigmas):
            kept_masks.tree_of(store, sigma, THRESHOLD)
            path = path_in(store, sigma, THRESHOLD)
            os.utime(path, (1000 + age, 1000 + age))
        kept_masks.tree_of(store, 1.0, THRESHOLD)  # used: 2.0 is now the oldest
        sizes = [path_in(store, s, THRESHOLD).stat().st_size for s in sigmas]
        monkeypatch.setattr(kept_masks, "LIMIT", sum(sizes) + min(sizes) // 2)
        kept_masks.tree_of(store, 2.5, THRESHOLD)
        there = [path_in(store, s, THRESHOLD).exists() for s in (*sigmas, 2.5)]
        assert there == [True, False, True, True]

    def test_what_is_larger_than_all_room_is_not_kept(self, store, monkeypatch):
        monkeypatch.setattr(kept_masks, "LIMIT", 100)
        assert same(kept_masks.tree_of(store, SIGMA, THRESHOLD), direct(store))
        assert not path_in(store, SIGMA, THRESHOLD).exists()

    def test_other_files_are_left_alone(self, store, monkeypatch):
        folder = path_in(store, SIGMA, THRESHOLD).parent
        folder.mkdir()
        (folder / "notes.txt").write_bytes(b"x" * 10_000)
        kept_masks.tree_of(store, 1.0, THRESHOLD)
        size = path_in(store, 1.0, THRESHOLD).stat().st_size
        monkeypatch.setattr(kept_masks, "LIMIT", int(1.5 * size))
        kept_masks.tree_of(store, 1.1, THRESHOLD)
        assert (folder / "notes.txt").exists()
        assert not path_in(store, 1.0, THRESHOLD).exists()


def test_small_images_are_not_kept(store, monkeypatch):
    monkeypatch.setattr(kept_masks, "MIN_VALUES", store.d + 1)
    assert same(kept_masks.tree_of(store, SIGMA, THRESHOLD), direct(store))
    assert not (store.path / kept_masks.FOLDER).exists()


def test_where_nothing_may_be_written_nothing_is_kept(store, monkeypatch):
    # A file where the folder would be: refused to every user, the superuser too.
    (store.path / kept_masks.FOLDER).write_bytes(b"")
    assert same(kept_masks.tree_of(store, SIGMA, THRESHOLD), direct(store))
    assert kept_masks.load(store, SIGMA, THRESHOLD) is None


def test_many_at_once_leave_one_whole_file(store):
    trees, wanted = [], direct(store)
    threads = [
        threading.Thread(
            target=lambda: trees.append(
                kept_masks.tree_of(ImageStore.open(store.path), SIGMA, THRESHOLD)
            )
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trees) == 6
    assert all(same(tree, wanted) for tree in trees)
    assert kept_masks.load(store, SIGMA, THRESHOLD) is not None
    assert [p.name for p in (store.path / kept_masks.FOLDER).iterdir()] == [
        path_in(store, SIGMA, THRESHOLD).name
    ]


def shares(store):
    return PCA(store, THRESHOLD, share="seamless").ready(SIGMA).shares


def units_path(store):
    (path,) = (store.path / kept_masks.FOLDER).glob("*-units-*")
    return path


def test_masks_of_units_are_made_once(store, monkeypatch):
    first = shares(store)
    assert units_path(store).is_file()
    monkeypatch.setattr(kept_masks, "unit_counts", None)
    assert np.array_equal(shares(ImageStore.open(store.path)), first)


def test_kept_masks_of_units_that_cannot_be_are_made_again(store):
    first, path = shares(store), units_path(store)
    sound = path.read_bytes()
    (counts,) = load_file(path).values()
    name = path.relative_to(store.path).with_suffix("").as_posix()
    said = store.artifacts.head(name)
    for wrong in (counts[:-1], counts.astype(np.int64), np.full_like(counts, 255)):
        store.artifacts.save(name, {"counts": wrong}, said)
        assert np.array_equal(shares(ImageStore.open(store.path)), first)
        assert path.read_bytes() == sound
    store.factors.estimate(50)
    assert not np.array_equal(shares(ImageStore.open(store.path)), first)


def test_kept_masks_of_units_of_few_images_need_no_factor(store, monkeypatch):
    monkeypatch.setattr("golddiff.store.factors.LARGE", 100)
    monkeypatch.setattr("golddiff.store.factors.SAMPLE_SIZE", 40)
    first, again = shares(store), ImageStore.open(store.path)
    monkeypatch.setattr(ImageStore, "_make_factor", None)
    assert np.array_equal(shares(again), first)
