"""A store larger than its memory limit gives the same results and releases its pages."""

import contextlib
import gc
import re
import shutil
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import golddiff.system.files
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.kamb import Kamb
from golddiff.estimators.optimal import Optimal
from golddiff.estimators.pca import PCA
from golddiff.store.device import DeviceStore
from golddiff.store.images import ImageStore
from golddiff.store.statistics import FACTOR_IMAGES, LARGE, covariance_factor, factor_rows
from golddiff.supports.paper import PaperSchedule
from golddiff.system.errors import ArgumentError, StoreError
from golddiff.system.residency import parts, resident_rows

MB = 1_000_000
linux = pytest.mark.skipif(sys.platform != "linux", reason="counts pages in /proc/self/smaps")


def resident(path):
    """Bytes of a mapped file that are resident in this process."""
    count, in_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            in_file = line.endswith(str(path))
        elif in_file and line.startswith("Rss:"):
            count += 1024 * int(line.split()[1])
    return count


@contextlib.contextmanager
def watched(path):
    """A list of one number: the peak of resident bytes of a mapped file during the block."""
    peak, stop = [0], threading.Event()

    def watch():
        while not stop.wait(0.002):
            peak[0] = max(peak[0], resident(path))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """The path of a store with 63 MB of pixels, 4 MB of proxies and no factor."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (13_000, 3, 40, 40), np.uint8)
    return ImageStore.build(pixels, tmp_path_factory.mktemp("large") / "store").path


@pytest.fixture(scope="module")
def small(tmp_path_factory, smooth_images):
    """The path of a store of 700 images."""
    path = tmp_path_factory.mktemp("small") / "store"
    ImageStore.build(smooth_images(700, (3, 16, 16)), path, torch.arange(700) % 3)
    return path


class TestRows:
    @given(
        rows=st.lists(st.integers(0, 699), max_size=40),
        limit=st.sampled_from([1.0, 3e6, 1e9]),
    )
    def test_resident_rows_are_the_requested_rows(self, small, rows, limit):
        store = ImageStore.open(small, memory_limit=limit)
        requested = np.array(rows, np.int64)
        with resident_rows(store.flat, requested) as (flat, places):
            assert np.array_equal(flat[places], store.flat[requested])
            assert not flat.flags.writeable

    def test_an_array_in_memory_is_returned_as_it_is(self):
        array, rows = np.ones((5, 3)), np.array([4, 1])
        with resident_rows(array, rows) as (flat, places):
            assert flat is array
            assert places is rows

    def test_rows_of_a_file_above_the_limit_are_copied(self, large):
        store = ImageStore.open(large, memory_limit=20 * MB)
        for rows in (np.arange(100, 200), np.array([5, 12_000])):
            with resident_rows(store.flat, rows) as (flat, _):
                assert flat is not store.flat

    def test_rows_of_a_file_below_the_limit_are_not_copied(self, large):
        store = ImageStore.open(large, memory_limit=100 * MB)
        with resident_rows(store.flat, np.array([5, 12_000])) as (flat, _):
            assert flat is store.flat

    def test_parts_hold_all_rows_in_order(self):
        pieces = list(parts(np.arange(10), 4))
        assert [start for start, _ in pieces] == [0, 4, 8]
        assert np.array_equal(np.concatenate([part for _, part in pieces]), np.arange(10))

    @pytest.mark.parametrize("limit", [0, -1, float("nan"), True, "2 GB", None])
    def test_invalid_limits_are_refused(self, small, limit):
        with pytest.raises(ArgumentError, match="memory_limit: got"):
            ImageStore.open(small, memory_limit=limit)


@linux
class TestResidentMemory:
    @pytest.mark.parametrize("method", ["optimal", "values", "proxies", "upload"])
    def test_a_full_scan_stays_within_the_limit(self, large, method):
        limit = 16 * MB
        store = ImageStore.open(large, memory_limit=limit)
        x = store.images([0, 1]) + 30 * torch.randn(2, *store.shape)
        with watched(large / "pixels.bin") as peak:
            if method == "optimal":
                Optimal(store)(x, 30.0)
            elif method == "values":
                for _, rows in parts(store.rows_of(None), 4000):
                    store.values(rows)
            elif method == "upload":
                DeviceStore(store, torch.device("cpu"))
            else:
                store.proxies((3, 5, 5))
        assert peak[0] <= limit

    def test_golden_subsets_stay_within_the_limit(self, large):
        limit = 16 * MB
        store = ImageStore.open(large, memory_limit=limit)
        x = store.images([0, 1]) + 3 * torch.randn(2, *store.shape)
        with watched(large / "pixels.bin") as peak, watched(large / "proxies.bin") as proxies:
            GoldDiff(Optimal(store), PaperSchedule())(x, 3.0)
        assert peak[0] + proxies[0] <= limit

    def test_a_file_below_the_limit_stays_resident_until_released(self, large):
        store = ImageStore.open(large)
        Optimal(store)(store.images([0]), 1.0)
        assert resident(large / "pixels.bin") > 60 * MB
        store.residency.release()
        assert resident(large / "pixels.bin") == 0
        assert torch.equal(store.images([7]), ImageStore.open(large).images([7]))


class TestResults:
    def test_every_method_gives_bit_identical_output(self, small, queries):
        store, limited = ImageStore.open(small), ImageStore.open(small, memory_limit=1.0)
        x = queries(store, 0.5, b=2)
        for make in (
            Optimal,
            PCA,
            lambda store: Kamb(store, 3),
            lambda store: GoldDiff(Optimal(store), PaperSchedule()),
            lambda store: GoldDiff(PCA(store), PaperSchedule(variant="released")),
        ):
            assert torch.equal(make(store)(x, 0.5), make(limited)(x, 0.5))
            assert torch.equal(make(store)(x, 0.5, 1), make(limited)(x, 0.5, 1))

    @pytest.mark.parametrize("make", [Optimal, PCA, lambda store: Kamb(store, 3)])
    def test_attribution_is_the_same(self, small, queries, make):
        x = queries(ImageStore.open(small), 0.5, b=1)
        attribution, limited = (
            make(ImageStore.open(small, memory_limit=limit)).attribute(x, 0.5, top=3)[0]
            for limit in (1e9, 1.0)
        )
        assert np.array_equal(attribution.sources, limited.sources)
        assert torch.equal(attribution.from_top(), limited.from_top())

    def test_the_factor_is_the_same(self, small):
        store = ImageStore.open(small, memory_limit=1.0)
        factor = covariance_factor(store.stored)
        assert np.array_equal(factor.eigenvectors, store.factor().eigenvectors)

    def test_images_in_any_order_are_the_same(self, small):
        store, limited = ImageStore.open(small), ImageStore.open(small, memory_limit=1.0)
        assert torch.equal(store.images([699, 3, 3]), limited.images([699, 3, 3]))
        assert torch.equal(store.images(), limited.images())


class TestProxies:
    def test_proxies_above_the_limit_are_kept_in_an_unlinked_file(self, small):
        files = sorted(small.iterdir())
        spilled = ImageStore.open(small, memory_limit=1000.0).proxies((3, 8, 8))
        assert np.array_equal(spilled, ImageStore.open(small).proxies((3, 8, 8)))
        assert sorted(small.iterdir()) == files

    def test_a_disk_too_full_for_proxies_is_named(self, small, monkeypatch):
        store = ImageStore.open(small, memory_limit=1000.0)
        usage = shutil.disk_usage(small)._replace(free=10)
        monkeypatch.setattr(golddiff.system.files.shutil, "disk_usage", lambda path: usage)
        with pytest.raises(
            StoreError,
            match=r"pooled images: .* needs about 538 kB",
        ):
            store.proxies((3, 8, 8))

    def test_files_are_closed_with_the_store(self, small):
        if not Path("/proc/self/fd").is_dir():
            pytest.skip("counts files in /proc/self/fd")
        gc.collect()
        count = len(list(Path("/proc/self/fd").iterdir()))
        ImageStore.open(small, memory_limit=1000.0).proxies((3, 8, 8))
        gc.collect()
        assert len(list(Path("/proc/self/fd").iterdir())) == count


class TestFactorOfASample:
    def test_only_large_sets_of_large_images_are_sampled(self):
        many = np.arange(FACTOR_IMAGES + 1)
        assert len(factor_rows(many, LARGE)) == len(many)
        assert len(factor_rows(many[:-1], LARGE + 1)) == len(many) - 1
        assert len(factor_rows(many, LARGE + 1)) == FACTOR_IMAGES

    @given(n=st.integers(1, 50), images=st.integers(1, 60), seed=st.integers(0, 5))
    def test_rows_are_distinct_and_the_same_for_equal_seeds(self, n, images, seed):
        rows = np.arange(100, 100 + n)
        drawn = factor_rows(rows, 10, images, seed)
        assert len(drawn) == min(n, images)
        assert np.array_equal(drawn, np.unique(drawn))
        assert np.isin(drawn, rows).all()
        assert np.array_equal(drawn, factor_rows(rows, 10, images, seed))

    def test_a_store_saves_the_factor_and_its_number_of_images(self, tmp_path, smooth_images):
        store = ImageStore.build(smooth_images(300, (1, 6, 6)), tmp_path / "store")
        assert store.factor().images == 300
        estimated = store.factors.estimate(np.int64(100), seed=3)
        reopened = ImageStore.open(store.path)
        reopened.verify()
        assert reopened.factor().images == estimated.images == 100
        assert np.array_equal(reopened.factor().eigenvectors, estimated.eigenvectors)
        rows = factor_rows(np.arange(300), 36, 100, seed=3)
        covariance = np.cov(store.images(rows).reshape(100, -1).double().numpy().T)
        rebuilt = (estimated.eigenvectors * estimated.eigenvalues) @ estimated.eigenvectors.T
        assert np.abs(rebuilt - covariance).max() < 1e-6
        assert store.factors.estimate(1000).images == 300

    def test_mark_identifies_the_factor_in_memory_not_in_the_file(self, tmp_path, smooth_images):
        store = ImageStore.build(smooth_images(300, (1, 6, 6)), tmp_path / "store")
        other = ImageStore.open(store.path)
        mark = store.factors.identifier()
        assert store.factors._computed == {}
        store.factor()
        other.factors.estimate(100, seed=3)
        assert store.factors.identifier() == mark
        assert other.factors.identifier() != mark
        assert ImageStore.open(store.path).factors.identifier() == other.factors.identifier()

    def test_a_store_without_other_references_computes_its_factor(self, tmp_path, smooth_images):
        ImageStore.build(smooth_images(60, (1, 6, 6)), tmp_path / "store")
        assert ImageStore.open(tmp_path / "store").factors.estimate(30).images == 30

    @pytest.mark.parametrize("images", [1, 0, -5, 2.5, True, "all"])
    def test_invalid_numbers_of_images_are_refused(self, small, images):
        with pytest.raises(ArgumentError, match="images: got"):
            ImageStore.open(small).factors.estimate(images)
