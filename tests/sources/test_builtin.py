from itertools import islice

import numpy as np
import pytest

from golddiff.sources import open_source
from golddiff.system.errors import ArgumentError

from .make import png, read


def test_digits_are_grey_bytes_of_ten_classes():
    source = open_source("digits")
    values, labels = read(source, 500)
    assert values.shape == (1797, 1, 8, 8)
    assert source.info.class_names == tuple("0123456789")
    assert set(np.unique(values)) == {round(v * 255 / 16) for v in range(17)}
    assert np.unique(labels).tolist() == list(range(10))


def test_digits_can_be_scaled():
    assert read(open_source("digits", size=16, channels=3, limit=5))[0].shape == (5, 3, 16, 16)


def test_a_builtin_name_takes_precedence_over_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "digits" / "a.png").write_bytes(png())
    assert open_source("digits").total == 1797
    assert open_source("./digits").total == 1


def test_moons_are_centred_points_of_magnitude_about_1():
    source = open_source("moons")
    points, labels = read(source, 300)
    assert source.info.dtype == np.float32
    assert points.shape == (2000, 2)
    assert 0.9 < np.abs(points).max() < 1.2
    assert np.abs(points.mean(0)).max() < 0.05
    assert np.bincount(labels).tolist() == [1000, 1000]


def test_moons_follow_limit_and_seed():
    points = read(open_source("moons", limit=11))[0]
    assert len(points) == 11
    assert np.array_equal(points, read(open_source("moons", limit=11))[0])
    assert not np.array_equal(points, read(open_source("moons", limit=11, seed=1))[0])


def test_moons_refuse_the_size_option():
    with pytest.raises(ArgumentError, match="do not apply"):
        open_source("moons", size=8)


def test_patches_are_rgb_bytes():
    source = open_source("patches")
    assert source.info.shape == (3, 32, 32)
    assert source.total == 10_000
    values, labels = read(open_source("patches", limit=2000), 700)
    assert labels is None
    assert 60 < values.mean() < 190
    assert values.std() > 40
    assert np.median(values.reshape(2000, -1).std(axis=1)) > 60  # few patches are flat
    assert len(np.unique(values.reshape(2000, -1), axis=0)) > 1900


def test_a_patch_depends_on_neither_limit_nor_batch_size():
    expected = read(open_source("patches", limit=2100, size=8), 3000)[0]
    single = [b.pixels[0] for b in islice(open_source("patches", size=8).batches(1), 1100)]
    assert np.array_equal(single, expected[:1100])
    for batch in (100, 1023, 1025, 5000):
        values = read(open_source("patches", limit=2060, size=8), batch)[0]
        assert np.array_equal(values, expected[:2060])


def test_a_patch_made_alone_equals_the_one_in_a_batch():
    source = open_source("patches", limit=1100, size=8)
    values, _ = read(source, 1100)
    for index in (0, 1023, 1024, 1099):
        assert np.array_equal(source.pixels(index, index + 1)[0], values[index])


@pytest.mark.parametrize("source", ["digits", np.zeros((3, 1, 4, 4), np.uint8)])
def test_a_seed_is_refused_where_nothing_is_drawn(source):
    with pytest.raises(ArgumentError, match="seed: got 7, which applies to moons and patches only"):
        open_source(source, seed=7)


def test_patches_differ_by_seed():
    first, second = (read(open_source("patches", limit=50, seed=seed), 50)[0] for seed in (0, 1))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("size", [1, 7, 64, 427, 500])
def test_patches_come_in_any_size(size):
    assert read(open_source("patches", limit=3, size=size))[0].shape == (3, 3, size, size)


def test_patches_can_be_grey():
    assert read(open_source("patches", limit=3, channels=1))[0].shape == (3, 1, 32, 32)


def test_patches_too_large_for_memory_are_refused():
    with pytest.raises(ArgumentError, match="size: got 100000, expected at most"):
        open_source("patches", size=100_000)
