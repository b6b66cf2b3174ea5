"""The index holds every image once, compares it rightly, and is never wrong after a mishap."""

import contextlib
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
from golddiff.errors import ArgumentError, StoreError
from golddiff.index import Index, build, fitting
from golddiff.index.views import TILES, WHOLE, columns_of, location_of, views_of
from golddiff.kernels.mask_tiles import tile_of_each


def test_every_location_holds_every_image_once(indexed):
    for locations in indexed.views.values():
        for t in range(locations.rows.shape[0]):
            assert np.array_equal(np.sort(locations.rows[t]), np.arange(indexed.store.n))


def test_what_is_kept_gives_back_the_image_up_to_its_rest(indexed):
    values = indexed.store.values(np.arange(indexed.store.n)).astype(np.float64)
    for locations in indexed.views.values():
        fit = locations.fit
        for t in range(fit.tiles):
            order = locations.rows[t].astype(np.int64)
            window = values[order][:, fit.columns[t]] - fit.mean[t]
            kept = locations.coordinates[t] * fit.scale[t].astype(np.float64)
            exact = window @ fit.basis[t].T
            cluster = np.repeat(np.arange(len(locations.clusters.rest[t])), np.diff(
                locations.clusters.starts[t]))  # fmt: skip
            error = np.linalg.norm(exact - kept, axis=1)
            assert (error <= locations.clusters.error[t, cluster] + 1e-4).all()
            rest = np.sqrt(np.maximum((window**2).sum(1) - (exact**2).sum(1), 0))
            assert np.allclose(rest, locations.rest[t], atol=2e-2, rtol=2e-3)
            away = np.linalg.norm(kept - locations.clusters.centres[t, cluster], axis=1)
            assert (away <= locations.clusters.radius[t, cluster] + 1e-5).all()


def test_bases_are_orthonormal(indexed):
    for locations in indexed.views.values():
        for basis in locations.fit.basis:
            assert np.abs(basis @ basis.T - np.eye(len(basis))).max() < 1e-5


@pytest.mark.parametrize("shape", [(3, 64, 64), (1, 28, 28), (3, 20, 33), (2, 9, 17)])
def test_windows_hold_their_tile(shape):
    for view in views_of(shape):
        if view.side is None:
            continue
        columns, tiles = columns_of(view, shape), tile_of_each(shape, view.side)
        for t, inside in enumerate(columns):
            assert np.isin(np.flatnonzero(tiles == t), inside).all()
            assert (np.diff(inside) > 0).all()


def test_a_tile_lies_in_the_wider_tile_that_it_is_said_to():
    shape = (3, 40, 28)
    narrow, wide = tile_of_each(shape, 4), tile_of_each(shape, 8)
    for t in range(narrow.max() + 1):
        assert set(wide[narrow == t]) == {location_of(shape, 4, t, 8)}


def test_points_and_small_images_have_the_whole_alone():
    assert views_of((2,)) == [WHOLE]
    assert views_of((3, 8, 8)) == [WHOLE]
    assert len(views_of((3, 64, 64))) == 1 + len(TILES)


def test_two_builds_are_the_same_to_the_bit(make_store, smooth_images, monkeypatch):
    images = smooth_images(600, (1, 12, 12))
    first = Index.build(make_store(images))
    monkeypatch.setattr(build, "PIECE", 4 * 144 * 50)
    second = Index.build(make_store(images))
    for side, locations in first.views.items():
        for name in ("rows", "coordinates"):
            one, other = getattr(locations, name), getattr(second.views[side], name)
            for t in range(one.shape[0]):
                assert np.array_equal(one[t], other[t])


@pytest.mark.parametrize("n", [1, 2, 300])
def test_few_images_and_equal_images(make_store, n):
    index = Index.build(make_store(torch.full((n, 3, 20, 20), 77, dtype=torch.uint8)))
    for locations in index.views.values():
        assert np.isfinite(locations.fit.basis).all()
        assert locations.rows.shape[1] == n


def test_float_points(make_store):
    points = torch.randn(500, 2, generator=torch.Generator().manual_seed(0))
    index = Index.build(make_store(points))
    assert index.views[None].coordinates.shape == (1, 500, 2)


def test_an_interrupted_build_goes_on(make_store, smooth_images, monkeypatch):
    store = make_store(smooth_images(900, (1, 12, 12)))
    monkeypatch.setattr(build, "PIECE", 4 * 144 * 100)
    monkeypatch.setattr(build, "SAVED_EVERY", 1)

    for wanted in (("reading pixels", 400), ("sorting", 2)):

        def stop(what, done, total, wanted=wanted):
            if (what, done) == wanted:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            build.build(store, progress=stop)
        with pytest.raises(StoreError, match="no complete index"):
            Index.open(store)
    seen = []
    Index.build(store, progress=lambda what, done, total: seen.append((what, done)))
    assert not any(what == "reading pixels" for what, _ in seen)
    again = make_store(smooth_images(900, (1, 12, 12)))
    whole = Index.build(again)
    for side, locations in Index.open(store).views.items():
        for t in range(locations.rows.shape[0]):
            assert np.array_equal(locations.rows[t], whole.views[side].rows[t])
            assert np.array_equal(locations.coordinates[t], whole.views[side].coordinates[t])


def test_a_killed_build_leaves_no_index_and_the_next_is_whole(make_store, smooth_images):
    store = make_store(smooth_images(2000, (1, 12, 12)))
    code = f"""
        import os, signal
        from golddiff import ImageStore
        from golddiff.index import build
        build.PIECE, build.SAVED_EVERY = 4 * 144 * 100, 1
        def stop(what, done, total):
            if done >= 700: os.kill(os.getpid(), signal.SIGKILL)
        build.build(ImageStore.open({str(store.path)!r}), progress=stop)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(StoreError, match="no complete index"):
        Index.open(store)
    Index.build(store).verify()


@pytest.fixture
def copy(indexed, tmp_path):
    """The indexed store again, to be damaged."""
    shutil.copytree(indexed.store.path, tmp_path / "copy")
    return ImageStore.open(tmp_path / "copy")


def test_an_index_of_another_store_is_refused(copy, make_store, smooth_images):
    other = make_store(smooth_images(3000, (3, 20, 20), seed=1))
    shutil.copytree(copy.path / "index", other.path / "index")
    with pytest.raises(StoreError, match="another store"):
        Index.open(other)


@pytest.mark.parametrize("name", ["whole-rows.bin", "whole.safetensors", "tiles8-coordinates.bin"])
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


@pytest.mark.parametrize("change", [{"version": 99}, {"format": "x"}, {"files": {"../a": {}}}])
def test_other_manifests_are_refused(copy, change):
    path = copy.path / "index" / "index.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(StoreError, match="index"):
        Index.open(copy)


def test_a_memory_limit_that_is_too_small_says_what_is_needed(indexed):
    with pytest.raises(ArgumentError, match=r"memory_limit: got 1.0 kB.*needs"):
        Index.build(indexed.store, memory_limit=1000)


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
    with pytest.raises(StoreError, match="cannot be written"):
        Index.build(store)


def test_duplicates_share_a_cluster(make_store, smooth_images):
    images = smooth_images(1000, (1, 12, 12))
    images[100:900] = images[50]
    index = Index.build(make_store(images))
    starts, rows = index.views[None].clusters.starts[0], index.views[None].rows[0]
    place = np.argsort(rows)[np.arange(100, 900)]
    clusters = np.searchsorted(starts, place, side="right") - 1
    assert len(set(clusters)) == 1
    assert fitting.SAMPLE > 1000


@pytest.mark.parametrize("name", ["file_record", "save_file"])
@pytest.mark.parametrize("after", range(9))
def test_stopped_among_its_last_steps_it_is_built_rightly_again(
    make_store, smooth_images, monkeypatch, name, after
):
    """What the passes wrote is removed there, and must not be gone on from."""
    store = make_store(smooth_images(60, (1, 20, 20)))
    expected = _bytes_of(build.build(store))
    shutil.rmtree(store.path / "index")
    step, steps = getattr(build, name), 0

    def stopped(*given):
        nonlocal steps
        steps += 1
        if steps > after:
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(build, name, stopped)
    with contextlib.suppress(KeyboardInterrupt):
        build.build(store)
    monkeypatch.undo()
    assert _bytes_of(build.build(store)) == expected


def _bytes_of(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
