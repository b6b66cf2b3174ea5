"""Memory needs are estimated in advance, and refused with figures if too large."""

import numpy as np
import pytest

from golddiff import PCA
from golddiff.estimators.registry import (
    METHODS,
    NO_COVARIANCE,
    Method,
    MethodSettings,
    create,
    memory_needed,
)
from golddiff.kernels.stored import Stored
from golddiff.sources.source_options import SourceOptions
from golddiff.store.cache import cached_store
from golddiff.store.images import ImageStore
from golddiff.store.needs import covariance_bytes, mask_bytes
from golddiff.store.statistics import covariance_factor
from golddiff.system import memory
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import free_memory, largest_side, require_memory

GB = 10**9


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(memory, "free_memory", lambda: 8 * GB)


def test_free_memory_is_what_the_system_reports(monkeypatch, tmp_path):
    assert free_memory() > 10**6
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    (tmp_path / "meminfo").write_text("MemTotal: 99 kB\nMemAvailable:      12 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    assert free_memory() == 12 * 1024


def test_the_limit_of_the_control_group_bounds_free_memory(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    contents = {"max": "1000000", "current": "900000", "stat": "anon 5\ninactive_file 7"}
    for name, text in contents.items():
        (tmp_path / f"memory.{name}").write_text(text)
    assert free_memory() == 100_007
    (tmp_path / "memory.max").write_text("max")
    assert free_memory() > 10**6


@pytest.mark.usefixtures("small")
def test_require_memory_raises_above_the_free_memory():
    require_memory(8 * GB, "it", "take less")
    with pytest.raises(ArgumentError, match=r"memory: it would take about 9.0 GB, and 8.0 GB"):
        require_memory(9 * GB, "it", "take less")


@pytest.mark.usefixtures("small")
def test_the_largest_side_fits_and_the_next_does_not():
    side = largest_side(lambda side: 3e5 * side * side)
    assert 3e5 * side * side <= 8 * GB < 3e5 * (side + 1) ** 2
    assert largest_side(lambda side: 9 * GB) == 0


@pytest.mark.usefixtures("small")
def test_too_large_images_are_refused_before_reading(tmp_path, monkeypatch):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    np.save(tmp_path / "a.npy", np.zeros((3, 20, 20, 3), np.uint8))
    with pytest.raises(
        ArgumentError, match=r"3 x 5000 x 5000 values would .* with size=64 \(at most \d+\)"
    ):
        cached_store(str(tmp_path / "a.npy"), SourceOptions(size=5000), needed=mask_bytes)
    assert not (tmp_path / "cache").exists()
    assert cached_store(str(tmp_path / "a.npy"), SourceOptions(), needed=mask_bytes).n == 3


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A store of three images of a million values, without a covariance."""
    path = tmp_path_factory.mktemp("large") / "store"
    ImageStore.build(np.zeros((3, 1000, 1000), np.uint8), path)
    return path


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("command", ["sample", "prepare"])
def test_commands_refuse_stores_whose_masks_exceed_memory(large, command, tmp_path, fails):
    arguments = {
        "sample": ["--store", str(large), "--method", "pca", "--out", str(tmp_path / "x.png")],
        "prepare": [str(large), "--method", "pca"],
    }
    error = fails(command, *arguments[command])
    assert "memory: the covariance and masks of pca for 3 images of 1 x 1000 x 1000" in error
    size = "--size 64" if command == "sample" else "size=64"
    assert f"5.0 TB, and 8.0 GB is free; read them with {size} (at most 199)" in error


@pytest.mark.usefixtures("small")
def test_only_methods_with_a_covariance_refuse_large_images(large):
    store = ImageStore.open(large)
    for name in ("optimal", "scfdm", "nearest", "wiener"):
        assert create(name, store)(store.images([0]), 1.0).shape == (1, 1, 1000, 1000)
    with pytest.raises(ArgumentError, match="memory: a matrix for images of 1,000,000 values"):
        PCA(store)(store.images([0]), 1.0)


@pytest.mark.usefixtures("small")
def test_a_too_large_covariance_is_refused_before_computation():
    images = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (10**5, 10**5), (0, 0))
    with pytest.raises(ArgumentError, match="memory: the covariance of 100,000 images"):
        covariance_factor(Stored(images))


def test_a_registered_method_is_not_charged_for_a_covariance(monkeypatch):
    monkeypatch.setitem(METHODS, "own", Method("own", PCA, {}))
    assert memory_needed("own", MethodSettings())(1000, 3072) == 0


def test_methods_that_compare_whole_images_need_no_covariance_or_masks():
    for name in METHODS:
        needed = memory_needed(name, MethodSettings())(1000, 3072)
        assert (needed == 0) == any(base in name for base in NO_COVARIANCE)
        assert needed in (0, covariance_bytes(1000, 3072), mask_bytes(1000, 3072))
