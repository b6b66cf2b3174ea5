"""Preparing makes what a first call would make, says so, and finds it the second time."""

import json

import pytest
import torch

import golddiff
from golddiff import ImageStore
from golddiff.cli import run
from golddiff.cli.preparing import prepare
from golddiff.estimators import kept_masks
from golddiff.estimators.registry import METHODS, MethodSettings, create
from golddiff.store import build as store_build
from golddiff.system.errors import ArgumentError

SIGMAS = [20.0, 2.0, 0.1]


@pytest.fixture(autouse=True)
def _keep_small_ones_too(monkeypatch):
    monkeypatch.setattr(kept_masks, "FEWEST_VALUES", 1)


@pytest.fixture
def late_factor(monkeypatch):
    """Stores without a factor yet, as of large images."""
    monkeypatch.setattr(store_build, "FACTOR_AT_BUILD", 1)


@pytest.fixture
def store(late_factor, make_store, smooth_images):
    return make_store(smooth_images(300, (3, 8, 8)), torch.arange(300) % 2)


def counts(parts):
    return {part.name: (part.there, part.made) for part in parts}


@pytest.mark.parametrize("method", METHODS)
def test_a_second_time_everything_is_there(store, method):
    first = prepare(create(method, store), SIGMAS)
    opened = ImageStore.open(store.path)
    again = prepare(create(method, opened), SIGMAS)
    kept = [part for part in again if part.name != "compiled kernels"]
    assert [part.name for part in first] == [part.name for part in again]
    assert all(part.made == 0 for part in kept)
    if method not in ("recommended", "optimal", "golddiff-optimal", "adaptive-optimal"):
        assert counts(first)["covariance factor"] == (0, 1)
        assert counts(again)["covariance factor"] == (1, 0)
    if method in ("pca", "golddiff-pca", "adaptive-pca"):
        assert counts(first)["masks"][1] == len(SIGMAS)
        assert counts(again)["masks"] == (len(SIGMAS), 0)
    opened.verify()


def test_after_it_nothing_is_made_any_more(store, monkeypatch, queries):
    settings = MethodSettings(mask_threshold=0.05, tol=0.1)
    denoiser = create("adaptive-pca", store, settings)
    prepare(denoiser, SIGMAS, (None, 1))
    expected = [denoiser(queries(store, s), s, label) for s in SIGMAS for label in (None, 1)]
    monkeypatch.setattr(kept_masks, "locality_mask", None)
    opened = ImageStore.open(store.path)
    again = create("adaptive-pca", opened, settings)
    found = [again(queries(opened, s), s, label) for s in SIGMAS for label in (None, 1)]
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_an_index_is_made_where_it_is_used(store):
    for index, made in ((None, False), (True, True)):
        golden = golddiff.GoldDiff(golddiff.Optimal(store), golddiff.AdaptiveSchedule(index=index))
        assert ("index" in counts(prepare(golden, SIGMAS))) == made
    assert counts(prepare(golden, SIGMAS))["index"] == (1, 0)


def test_small_images_have_no_masks_to_keep(store, monkeypatch):
    monkeypatch.setattr(kept_masks, "FEWEST_VALUES", store.d + 1)
    assert "masks" not in counts(prepare(golddiff.PCA(store), SIGMAS))


def test_it_watches(store):
    seen = []
    prepare(golddiff.PCA(store), SIGMAS, watch=lambda *what: seen.append(what))
    assert ("images summed", 300, 300) in seen
    assert ("masks", 1, 3) in seen
    assert ("masks", 3, 3) in seen


def test_a_class_without_images_is_named(store):
    with pytest.raises(ArgumentError, match="labels: got 7"):
        prepare(golddiff.PCA(store), SIGMAS, (7,))


def test_where_nothing_may_be_written_it_refuses_before_the_work(store, monkeypatch):
    from golddiff.cli import preparing

    prepare(golddiff.PCA(store, 0.05), SIGMAS)

    def refuse(name, path, suffixes=()):
        raise ArgumentError(f"{name}: {path} cannot be written (Read-only file system)")

    monkeypatch.setattr(preparing, "check_writable", refuse)
    prepare(golddiff.PCA(store, 0.05), SIGMAS)  # all there: nothing to write
    monkeypatch.setattr(kept_masks, "locality_mask", None)
    with pytest.raises(ArgumentError, match=r"store: .* cannot be written"):
        prepare(golddiff.PCA(store, 0.06), SIGMAS)


class TestCommand:
    @pytest.fixture
    def path(self, store):
        return str(store.path)

    def test_it_tells_what_was_made_and_what_was_there(self, path, capsys, tmp_path):
        report = tmp_path / "prepared.json"
        options = ["--method", "golddiff-pca", "--steps", "3", "--json", str(report)]
        assert run(["prepare", path, *options]) == 0
        assert "golddiff-pca is prepared for 3 noise levels" in capsys.readouterr().out
        parts = {part["name"]: part for part in json.loads(report.read_text())["parts"]}
        assert (parts["masks"]["made"], parts["masks"]["there"]) == (3, 0)
        assert run(["prepare", path, *options]) == 0
        figures = json.loads(report.read_text())
        parts = {part["name"]: part for part in figures["parts"]}
        assert (parts["masks"]["made"], parts["masks"]["there"]) == (0, 3)
        assert parts["covariance factor"]["there"] == 1
        assert figures["sigmas"] == golddiff.sampling.noise_levels(3, "ddim")
        assert figures["method"] == "golddiff-pca"

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


def test_the_step_of_a_plain_scan_is_over_few_images(store, monkeypatch):
    optimal = golddiff.Optimal(store)
    seen = []
    over = optimal.denoise_over
    monkeypatch.setattr("golddiff.cli.preparing.TRIED", 20)
    monkeypatch.setattr(
        optimal,
        "denoise_over",
        lambda x, s, support: (seen.append(len(support)), over(x, s, support))[1],
    )
    prepare(optimal, SIGMAS)
    assert set(seen) == {20}


def test_no_masks_are_made_for_noise_at_which_they_are_not_used(make_store, smooth_images):
    store = make_store(smooth_images(60, (3, 8, 8)))
    denoiser = golddiff.network_like(store)
    assert counts(prepare(denoiser, [0.5, 0.7, 20.0]))["masks"] == (0, 6)  # three thresholds
    assert "masks" not in counts(prepare(denoiser, [20.0]))
