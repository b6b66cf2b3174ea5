"""Preparing makes what a first call would make, says so, and finds it the second time."""

import json
import sys

import pytest
import torch

import golddiff
from golddiff import ImageStore
from golddiff.cli import run
from golddiff.cli.first_use import make_index, take_steps
from golddiff.estimators import kept_masks
from golddiff.estimators.registry import METHODS, NO_COVARIANCE, MethodSettings, create
from golddiff.samplers import noise_levels
from golddiff.store import build as store_build
from golddiff.system.errors import ArgumentError

SIGMAS = [20.0, 2.0, 0.1]


@pytest.fixture(autouse=True)
def _keep_small_ones_too(monkeypatch):
    monkeypatch.setattr(kept_masks, "MIN_VALUES", 1)


@pytest.fixture
def late_factor(monkeypatch):
    """Stores without a factor yet, as of large images."""
    monkeypatch.setattr(store_build, "FACTOR_AT_BUILD", 1)


@pytest.fixture
def store(late_factor, make_store, smooth_images):
    return make_store(smooth_images(300, (3, 8, 8)), torch.arange(300) % 2)


def masks(store):
    return len(list((store.path / "masks").glob("*")))


def test_after_it_nothing_is_made_any_more(store, monkeypatch, queries):
    settings = MethodSettings(mask_threshold=0.05, tol=0.1)
    denoiser = create("adaptive-pca", store, settings)
    take_steps(denoiser, SIGMAS, (None, 1))
    expected = [denoiser(queries(store, s), s, label) for s in SIGMAS for label in (None, 1)]
    monkeypatch.setattr(kept_masks, "locality_mask", None)
    opened = ImageStore.open(store.path)
    again = create("adaptive-pca", opened, settings)
    found = [again(queries(opened, s), s, label) for s in SIGMAS for label in (None, 1)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_index_is_made_where_it_is_used(store):
    for index, made in ((None, False), (True, True)):
        schedule = golddiff.AdaptiveSchedule(0.1, index=index)
        make_index(golddiff.GoldDiff(golddiff.Optimal(store), schedule))
        assert (store.path / "index").is_dir() == made


def test_small_images_have_no_masks_to_keep(store, monkeypatch):
    monkeypatch.setattr(kept_masks, "MIN_VALUES", store.d + 1)
    take_steps(golddiff.PCA(store), SIGMAS)
    assert masks(store) == 0


def test_it_tells_of_each_level(store):
    seen = []
    take_steps(golddiff.PCA(store), SIGMAS, (None, 1), lambda: seen.append(masks(store)))
    assert seen == [1, 2, 3, 3, 3, 3]


def test_a_class_without_images_is_named(store):
    with pytest.raises(ArgumentError, match="labels: got 7"):
        take_steps(golddiff.PCA(store), SIGMAS, (7,))


def test_the_step_of_a_plain_scan_is_over_few_images(store, monkeypatch):
    optimal, seen = golddiff.Optimal(store), []
    over = optimal.denoise_over
    monkeypatch.setattr("golddiff.cli.first_use.WARM_UP_IMAGES", 20)
    monkeypatch.setattr(
        optimal,
        "denoise_over",
        lambda x, s, support: (seen.append(len(support)), over(x, s, support))[1],
    )
    take_steps(optimal, SIGMAS)
    assert set(seen) == {20}


def test_no_masks_are_made_for_noise_at_which_they_are_not_used(make_store, smooth_images):
    store = make_store(smooth_images(60, (3, 8, 8)))
    denoiser = golddiff.network_like(store)
    take_steps(denoiser, [20.0])
    assert masks(store) == 0
    take_steps(denoiser, [0.5, 0.7])
    assert masks(store) == 2  # those of its narrow masks; squares need none


class TestCommand:
    @pytest.fixture
    def path(self, store):
        return str(store.path)

    @pytest.mark.parametrize("method", METHODS)
    def test_a_second_time_everything_is_there(self, store, method, tmp_path):
        report = tmp_path / "prepared.json"
        options = ["--method", method, "--sigmas", "20,2,0.1", "--json", str(report)]
        assert run(["prepare", str(store.path), *options]) == 0
        first = json.loads(report.read_text())["made"]
        assert run(["prepare", str(store.path), *options]) == 0
        assert json.loads(report.read_text())["made"] == {}
        kept = [name for name in first if name.startswith("masks/")]
        assert len(kept) == 3 or method not in ("pca", "golddiff-pca", "adaptive-pca")
        whole_images = any(base in method for base in NO_COVARIANCE)
        assert ("factor-of-all.safetensors" in first) == (not whole_images)
        ImageStore.open(store.path).verify()

    def test_it_tells_what_was_made(self, path, capsys, tmp_path):
        report = tmp_path / "prepared.json"
        options = ["--method", "golddiff-pca", "--steps", "3", "--json", str(report)]
        assert run(["prepare", path, *options]) == 0
        told = capsys.readouterr().out
        assert "golddiff-pca is prepared for 3 noise levels: 4 files made" in told
        figures = json.loads(report.read_text())
        assert figures["sigmas"] == noise_levels(3, "ddim")
        assert figures["method"] == "golddiff-pca"

    def test_where_nothing_may_be_written_it_refuses_before_the_work(
        self, path, capsys, monkeypatch
    ):
        def refuse(name, path, suffixes=()):
            raise ArgumentError(f"{name}: {path} cannot be written (Read-only file system)")

        monkeypatch.setattr(sys.modules["golddiff.cli.prepare"], "check_writable", refuse)
        monkeypatch.setattr(kept_masks, "locality_mask", None)
        assert run(["prepare", path, "--method", "pca"]) == 2
        assert "cannot be written" in capsys.readouterr().err

    def test_verbose_shows_how_images_are_chosen(self, path, capsys):
        options = ["--method", "adaptive-pca", "--tol", "0.1", "--sigmas", "3,0.3", "--labels", "1"]
        assert run(["prepare", path, *options, "--verbose"]) == 0
        lines = capsys.readouterr().out.splitlines()
        (three,) = [line for line in lines if line.startswith("sigma 3, class 1: ")]
        assert "weighs all 150 images" in three

    def test_verbose_of_a_method_that_chooses_nothing(self, path, capsys):
        assert run(["prepare", path, "--method", "wiener", "--sigmas", "3", "--verbose"]) == 0
        assert "sigma 3" not in capsys.readouterr().out

    def test_noise_levels_and_classes_of_one_s_own(self, path, tmp_path):
        report = tmp_path / "prepared.json"
        options = ["--method", "adaptive-optimal", "--tol", "0.1", "--json", str(report)]
        assert run(["prepare", path, *options, "--sigmas", "3,0.3", "--labels", "0,1,0"]) == 0
        figures = json.loads(report.read_text())
        assert figures["sigmas"] == [3.0, 0.3]
        assert figures["labels"] == [0, 1]

    @pytest.mark.parametrize(
        ("options", "name"),
        [
            (["--method", "none"], "method"),
            (["--method", "optimal", "--tol", "0.1"], "tol"),
            (["--sigmas", "1,2", "--steps", "3"], "sigmas"),
            (["--sigmas", "1,2", "--sampler", "heun"], "sigmas"),
            (["--sigmas", "1,-2"], "sigmas"),
            (["--sigmas", "nan"], "sigmas"),
            (["--sigmas", "inf"], "sigmas"),
            (["--sigmas", "a"], "sigmas"),
            (["--steps", "0"], "steps"),
            (["--sampler", "euler"], "sampler"),
            (["--threads", "0"], "threads"),
            (["--labels", "9"], "labels"),
            (["--method", "pca", "--mask-threshold", "2"], "mask-threshold"),
        ],
    )
    def test_bad_input_is_named_in_one_line(self, path, capsys, options, name):
        assert run(["prepare", path, *options]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(f"golddiff: --{name}: ")

    def test_no_store(self, tmp_path, capsys):
        assert run(["prepare", str(tmp_path / "none")]) == 2
        assert "does not exist" in capsys.readouterr().err


def test_a_first_look_is_drawn_until_the_dial_is_measured(
    make_store, smooth_images, tmp_path, monkeypatch, capsys
):
    from golddiff.cli.first_use import first_look
    from golddiff.estimators.dial import dial

    store, out = make_store(smooth_images(20, (1, 8, 8))), tmp_path / "look.png"
    first_look(store, out, 2, 0, None)  # small images: the picture itself is there as soon
    assert not out.exists()
    monkeypatch.setattr("golddiff.cli.first_use.LARGE", 1)
    first_look(store, out, 2, 0, None)
    assert "a first look, 2 rough images" in capsys.readouterr().out
    assert out.exists()
    dial(store)
    out.unlink()
    first_look(store, out, 2, 0, None)
    assert not out.exists()
