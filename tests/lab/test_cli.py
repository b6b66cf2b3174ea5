import json
import math
import os

import numpy as np
import pytest

import golddiff
from golddiff.cli import run
from golddiff.noise import ddim_sigmas
from golddiff.system.errors import ArgumentError, StoreError
from golddiff_lab.bench.step_job import StepJob
from golddiff_lab.machine import Rates
from golddiff_lab.process import Process
from golddiff_lab.sides import SideSpec
from tests.lab.checkouts import write_checkout
from tests.lab.in_process import InProcess


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(40))


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("golddiff_lab.bench.step.measure", lambda: Rates(2, 1e11, 1e10))
    monkeypatch.setattr("golddiff_lab.race.Process", InProcess)


@pytest.fixture
def fails(fails):
    return lambda *arguments: fails("bench", *map(str, arguments))


def test_a_race_reports_every_side_at_every_level(store, tmp_path, capsys):
    peer = write_checkout("release", tmp_path / "peer")
    out = tmp_path / "race.json"
    arguments = ["bench", "step", str(store.path), "--method", "golddiff-pca,wiener", "--peer",
                 str(peer), "--batch", "2", "--repeats", "2", "--levels", "60.8,0.342",
                 "--threads", "1", "--json", str(out)]  # fmt: skip
    assert run(arguments) == 0
    text = capsys.readouterr().out
    assert "ratio     the time of release divided by this side's" in text
    assert "peak resident" in text

    figures = json.loads(out.read_text())
    sides = {"golddiff-pca", "wiener", "release"}
    assert set(figures["sides"]) == sides
    assert figures["against"] == "release"
    reference = figures["sides"]["golddiff-pca"]["reference"]
    assert (reference["method"], reference["mask_threshold"]) == ("pca", 0.02)
    assert set(figures["machine"]) == {"threads", "float32_matrix", "copy"}
    rate = figures["machine"]["float32_matrix"]
    steps = ddim_sigmas(10)
    assert [level["sigma"] for level in figures["levels"]] == [steps[0], steps[8]]
    for level in figures["levels"]:
        assert set(level["sides"]) == sides
        release = level["sides"]["release"]["seconds"]
        for side in level["sides"].values():
            assert len(side["seconds_measured"]) == 2
            assert side["ratio"] == pytest.approx(release / side["seconds"])
            assert side["rmse"] >= 0
            assert side["gflop"] == pytest.approx(side["seconds"] * rate / 1e9)
    for side in figures["sides"].values():
        assert side["bytes_peak"] >= side["bytes_opened"] > 1 << 20
        assert math.isfinite(side["rmse"])


def test_a_race_without_truth_on_part_of_a_store_has_no_errors(store, tmp_path, capsys):
    out = tmp_path / "race.json"
    arguments = ["step", str(store.path), "--method", "pca", "--truth-queries", "0",
                 "--limit", "30", "--levels", "1", "--repeats", "1", "--queries-from", "noised",
                 "--json", str(out)]  # fmt: skip
    assert run(["bench", *arguments]) == 0
    figures = json.loads(out.read_text())
    assert figures["store"]["n"] == 30
    assert figures["levels"][0]["sides"]["pca"]["rmse"] is None
    assert "RMSE  " not in capsys.readouterr().out.split("ms   ")[-1]


def test_kamb_is_raced_against_its_authors_code(store, tmp_path, capsys):
    peer = write_checkout("kamb-ganguli", tmp_path / "peer")
    out = tmp_path / "kamb.json"
    arguments = ["step", str(store.path), "--method", "kamb", "--peer", str(peer), "--patch-size",
                 "7", "--limit", "20", "--levels", "1", "--batch", "1", "--repeats", "1", "--json",
                 str(out)]  # fmt: skip
    assert run(["bench", *arguments]) == 0
    (level,) = json.loads(out.read_text())["levels"]
    ours, theirs = level["sides"]["kamb"], level["sides"]["kamb-ganguli"]
    assert ours["ratio"] == pytest.approx(theirs["seconds"] / ours["seconds"])
    assert ours["rmse"] < 1e-5
    # The miniature compares a position with itself only; boundary "zeros" with many.
    assert theirs["rmse"] > 1e-3


@pytest.fixture
def no_work(monkeypatch):
    """Any measuring, sampling or scanning fails."""
    for name in ("measure", "trajectory", "full_scans", "started"):
        monkeypatch.setattr(f"golddiff_lab.bench.step.{name}", None)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "method: got 'magic', expected one of recommended"),
        (["--method", "pca,pca"], "method: got pca twice"),
        (["--batch", "0"], "batch-size: got 0, expected 1 or more"),
        (["--repeats", "0"], "repeats: got 0"),
        (["--seconds", "0"], "seconds: got 0.0"),
        (["--threads", "0"], "threads: got 0"),
        (["--limit", "0"], "limit: got 0"),
        (["--truth-queries", "-1"], "truth-queries: got -1"),
        (["--levels", "1,x"], "levels: got '1,x'"),
        (["--levels", "0"], "levels: got 0.0"),
        (["--levels", "nan"], "levels: got nan"),
        (["--queries-from", "x"], "queries-from: got 'x'"),
        (["--peer", "no/such/folder"], "peer: got no/such/folder, which is not a folder"),
        (["--patch-size", "3"], "patch-size: does not apply to method golddiff-pca, only"),
        (["--peer", "faiss", "--peer", "faiss"], "peer: got faiss twice"),
        (["--peer", "faiss", "--method", "optimal", "--k-min", "0"], "-k-min: got 0 images"),
        (["--mask-threshold", "2"], "mask-threshold: got 2"),
        (["--json", "/"], "json: / is a folder"),
        (["--levels", "1e300"], "levels: got 1e+300, expected numbers above 0, at most 1e+06"),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_bad_arguments_give_one_line(arguments, message, store, fails):
    assert message in fails("step", store.path, *arguments)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("release", ["--levels", "26"], "levels: got 26, but the authors' release"),
        ("studio", ["--levels", "0.5"], "levels: got 0.5, but Lukoianov et al."),
    ],
)
@pytest.mark.usefixtures("no_work")
def test_settings_that_a_peer_lacks_are_refused_before_any_work(
    name, arguments, message, store, fails, tmp_path
):
    peer = write_checkout(name, tmp_path / "peer")
    assert message in fails("step", store.path, "--peer", peer, *arguments)


def test_levels_typed_with_three_digits_are_those_of_the_run():
    steps = ddim_sigmas(10)
    typed = ",".join(f"{sigma:.3g}" for sigma in steps)
    assert StepJob("", levels=tuple(map(float, typed.split(",")))).sigmas == steps
    assert StepJob("", levels=(26.0,)).sigmas == [26.0]
    assert StepJob("", levels=(1.0, 3.0, 1.0)).sigmas == [1.0, 3.0]


def test_a_missing_store_gives_one_line(fails, tmp_path):
    assert "does not exist" in fails("step", tmp_path / "none")


# Sides in separate processes


def test_a_side_that_fails_raises_an_error_with_its_name(tmp_path):
    missing = SideSpec("optimal", tmp_path / "nowhere")
    with (
        pytest.raises(StoreError, match=r"optimal: store: .*nowhere does not exist"),
        Process(missing),
    ):
        pass


def test_a_method_runs_in_a_separate_process(store):
    spec = SideSpec("wiener", store.path)
    x = store.images([0, 1])
    before = os.environ.get("OMP_NUM_THREADS")
    with Process(spec) as side:
        assert os.environ.get("OMP_NUM_THREADS") == before
        step = side.ask("step", x.numpy(), 1.0)
        assert step.seconds > 0
        assert side.ask("run", 2, 3, 0).out.shape == (2, 3, 8, 8)
        np.testing.assert_allclose(step.out, golddiff.Wiener(store)(x, 1.0), atol=1e-5)
        memory = side.ask("memory")
        assert memory["peak"] >= memory["opened"] > 1 << 20
        assert side.ask("weighed", x.numpy(), 1.0) is None
        side._process.kill()
        with pytest.raises(ArgumentError, match=r"wiener: its process ended \(exit code -9\)"):
            side.ask("step", x.numpy(), 1.0)
