"""Preparing computes what a first call would compute, reports it, and reuses it."""

import json
import sys
import threading
import time
from contextlib import nullcontext

import pytest
import torch

import golddiff
from golddiff import ImageStore
from golddiff.cli import first_use, run
from golddiff.cli.first_use import make_covariance, make_index, take_steps
from golddiff.estimators import masks
from golddiff.estimators import pca as pca_masks
from golddiff.estimators.registry import METHODS, NO_COVARIANCE, MethodSettings, create
from golddiff.samplers import noise_levels
from golddiff.store import build as store_build
from golddiff.store import statistics
from golddiff.system.errors import ArgumentError

SIGMAS = [20.0, 2.0, 0.1]


@pytest.fixture
def late_factor(monkeypatch):
    """Stores that compute no factor when built, as those of large images."""
    monkeypatch.setattr(store_build, "LARGE", 1)


@pytest.fixture
def store(late_factor, make_store, smooth_images):
    return make_store(smooth_images(300, (3, 8, 8)), torch.arange(300) % 2)


def count_masks(store):
    return len(list((store.path / "masks").glob("*")))


def test_after_take_steps_no_masks_are_computed(store, monkeypatch, queries):
    settings = MethodSettings(mask_threshold=0.05, tol=0.1)
    denoiser = create("adaptive-pca", store, settings)
    take_steps(denoiser, SIGMAS, (None, 1))
    expected = [denoiser(queries(store, s), s, label) for s in SIGMAS for label in (None, 1)]
    monkeypatch.setattr(masks, "locality_mask", None)
    opened = ImageStore.open(store.path)
    denoiser = create("adaptive-pca", opened, settings)
    images = [denoiser(queries(opened, s), s, label) for s in SIGMAS for label in (None, 1)]
    assert all(torch.equal(a, b) for a, b in zip(images, expected, strict=True))


def test_an_index_is_built_if_the_schedule_uses_one(store):
    for index, built in ((None, False), (True, True)):
        schedule = golddiff.AdaptiveSchedule(0.1, index=index)
        make_index(golddiff.GoldDiff(golddiff.Optimal(store), schedule))
        assert (store.path / "index").is_dir() == built


def test_the_bar_of_the_covariance_is_full_after_a_sample_of_large_images(store, monkeypatch):
    """Regression: over a million photographs it showed 12 times the time that was left."""
    monkeypatch.setattr(statistics, "LARGE", store.d - 1)
    monkeypatch.setattr(statistics, "FACTOR_IMAGES", 250)
    shown = []
    bar = nullcontext(lambda *done: shown.append(done))
    monkeypatch.setattr(first_use, "waiting", lambda text: bar)
    make_covariance("wiener", store, MethodSettings())
    assert shown[-1] == (250, 250)


def test_take_steps_reports_each_level_and_class(store):
    counts = []
    take_steps(golddiff.PCA(store), SIGMAS, (None, 1), lambda: counts.append(count_masks(store)))
    assert counts == [1, 2, 3, 3, 3, 3]


def test_a_class_without_images_is_named(store):
    with pytest.raises(ArgumentError, match="labels: got 7"):
        take_steps(golddiff.PCA(store), SIGMAS, (7,))


@pytest.mark.parametrize("golden", [False, True])
def test_steps_weigh_few_images(store, monkeypatch, golden):
    optimal, sizes = golddiff.Optimal(store), []
    denoise_over = optimal.denoise_over
    monkeypatch.setattr("golddiff.cli.first_use.WARM_UP_IMAGES", 20)
    monkeypatch.setattr(
        optimal,
        "denoise_over",
        lambda x, s, supports: (sizes.extend(map(len, supports)), denoise_over(x, s, supports))[1],
    )
    everything = golddiff.PaperSchedule(1.0, 1.0, 1.0, 1.0)
    take_steps(golddiff.GoldDiff(optimal, everything) if golden else optimal, SIGMAS)
    assert set(sizes) == {20}


def test_no_masks_are_computed_for_noise_levels_that_use_none(make_store, smooth_images):
    store = make_store(smooth_images(60, (3, 8, 8)))
    denoiser = golddiff.network_like(store)
    take_steps(denoiser, [20.0])
    assert count_masks(store) == 0
    take_steps(denoiser, [0.5, 0.7])
    assert count_masks(store) == 2  # squares need no masks


class TestCommand:
    @pytest.fixture
    def path(self, store):
        return str(store.path)

    @pytest.mark.parametrize("method", METHODS)
    def test_preparing_twice_makes_no_further_files(self, store, method, tmp_path):
        report = tmp_path / "prepared.json"
        options = ["--method", method, "--sigmas", "20,2,0.1", "--json", str(report)]
        assert run(["prepare", str(store.path), *options]) == 0
        first = json.loads(report.read_text())["made"]
        assert run(["prepare", str(store.path), *options]) == 0
        assert json.loads(report.read_text())["made"] == {}
        masks = [name for name in first if name.startswith("masks/")]
        assert len(masks) == 3 or method not in ("pca", "golddiff-pca", "adaptive-pca")
        whole_images = any(base in method for base in NO_COVARIANCE)
        assert ("factor-of-all.safetensors" in first) == (not whole_images)
        ImageStore.open(store.path).verify()

    def test_the_report_lists_levels_method_and_files(self, path, capsys, tmp_path):
        report = tmp_path / "prepared.json"
        options = ["--method", "golddiff-pca", "--steps", "3", "--json", str(report)]
        assert run(["prepare", path, *options]) == 0
        out = capsys.readouterr().out
        assert "golddiff-pca is prepared for 3 noise levels: 5 files made" in out
        figures = json.loads(report.read_text())
        assert figures["sigmas"] == noise_levels(3, "ddim")
        assert figures["method"] == "golddiff-pca"

    def test_a_read_only_store_is_refused_before_computing(self, path, fails, monkeypatch):
        def refuse(name, path, suffixes=()):
            raise ArgumentError(f"{name}: {path} cannot be written (Read-only file system)")

        monkeypatch.setattr(sys.modules["golddiff.cli.prepare"], "check_writable", refuse)
        monkeypatch.setattr(masks, "locality_mask", None)
        assert "cannot be written" in fails("prepare", path, "--method", "pca")

    def test_a_disk_too_full_for_the_results_is_told(self, path, fails, monkeypatch):
        def full(name, path):
            raise ArgumentError(f"{name}: {path} cannot be written (No space left on device)")

        monkeypatch.setattr("golddiff.store.artifacts.atomic_write", full)
        assert "of results could not be written in" in fails("prepare", path, "--method", "pca")

    def test_sigmas_and_labels_select_noise_levels_and_classes(self, path, tmp_path):
        report = tmp_path / "prepared.json"
        options = ["--method", "adaptive-optimal", "--tol", "0.1", "--json", str(report)]
        assert run(["prepare", path, *options, "--sigmas", "3,0.3", "--labels", "0,1,0"]) == 0
        figures = json.loads(report.read_text())
        assert figures["sigmas"] == [3.0, 0.3]
        assert figures["labels"] == [0, 1]

    @pytest.mark.parametrize(
        "options",
        [
            *("--method none", "--tol 0.1 --method optimal", "--mask-threshold 2 --method pca"),
            *("--sigmas 1,2 --steps 3", "--sigmas 1,2 --sampler heun", "--sigmas 1,-2"),
            *("--sigmas nan", "--sigmas inf", "--sigmas a", "--steps 0", "--sampler euler"),
            *("--threads 0", "--labels 9"),
        ],
    )
    def test_invalid_options_are_named_in_one_line(self, path, fails, options):
        name, *_ = arguments = options.split()
        assert fails("prepare", path, *arguments).startswith(f"golddiff: {name}: ")

    def test_a_missing_store_is_refused(self, fails):
        assert "does not exist" in fails("prepare", "none")


def test_an_interrupt_while_measuring_leaves_the_earlier_picture(
    make_store, smooth_images, tmp_path, monkeypatch, capsys
):
    from golddiff.estimators import dial

    def interrupt(*_):
        raise KeyboardInterrupt

    store, out = make_store(smooth_images(20, (1, 8, 8))), tmp_path / "keep.png"
    monkeypatch.setattr(dial, "_measure", interrupt)
    out.write_text("finished")
    assert run(["sample", "--store", str(store.path), "--out", str(out)]) == 130
    assert "no partial files were written" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["keep.png"]
    assert out.read_text() == "finished"


@pytest.mark.parametrize(
    "use",
    [
        lambda store, x: golddiff.PCA(store, weighting="wss", batch_size=16)(x, 0.5),
        lambda store, x: golddiff.PCA(store)(x, 0.5),
        lambda store, x: golddiff.PCA(store).posterior(x, 0.5).variance,
    ],
    ids=["wss", "ss", "variance"],
)
@pytest.mark.usefixtures("two_threads")
def test_masks_are_computed_once_and_not_by_each_thread(store, queries, monkeypatch, use):
    callers = []

    def make_ready(pca, sigma, own=golddiff.PCA.make_ready):
        callers.append(threading.current_thread())
        time.sleep(0.05)  # time for another thread to ask for the same masks
        return own(pca, sigma)

    monkeypatch.setattr(golddiff.PCA, "make_ready", make_ready)
    monkeypatch.setattr(golddiff.PCA, "part_size", 16)
    use(store, queries(store, 0.5, 2))
    assert callers == [threading.main_thread()]


@pytest.mark.usefixtures("two_threads")
def test_each_pass_computes_one_dense_mask_and_frees_it(store, queries, monkeypatch):
    times = []

    def dense_mask(tree, d, own=pca_masks.dense_mask):
        times.append(time.monotonic())
        time.sleep(0.05)  # time for another thread to ask for the same mask
        times.append(time.monotonic())
        return own(tree, d)

    monkeypatch.setattr(pca_masks, "dense_mask", dense_mask)
    monkeypatch.setattr("golddiff.store.exact.TOL", -1.0)  # all queries need float64
    monkeypatch.setattr(golddiff.PCA, "part_size", 16)
    pca = golddiff.PCA(store)
    assert (pca.posterior(queries(store, 0.5, 2), 0.5).variance > 0).any()
    assert len(times) == 4  # starts and ends, of the means' pass and the variances'
    assert times[1] - times[0] >= 0.05
    assert times[3] - times[2] >= 0.05
    assert pca.ready(0.5)._dense is None
