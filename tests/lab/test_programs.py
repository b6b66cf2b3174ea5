"""Modules run as programs: their results, and one line for bad input before any work."""

import json

import pytest

import golddiff
from golddiff_lab import flow_matching, gpu, mmse, restoring, tolerance
from golddiff_lab.machine import Rates
from golddiff_lab.programs import program
from tests.lab.checkouts import write_checkout


@pytest.fixture
def _nothing_runs(monkeypatch):
    for module in (flow_matching, mmse, restoring):
        monkeypatch.setattr(module, "compared", None)
        monkeypatch.setattr(module, "check_deepinv", lambda: None, raising=False)
    monkeypatch.setattr(tolerance, "levels_of", None)
    monkeypatch.setattr(gpu, "measure", None)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (mmse, ["nowhere"], "store: nowhere does not exist"),
        (mmse, ["{store}", "--batch", "0"], "'--batch': "),
        (mmse, ["{store}", "--json", "{folder}"], "--json: "),
        (flow_matching, ["{store}"], "store: holds 8 x 8 grey, expected images of 20 x 20"),
        (flow_matching, ["{store}", "--out", "x.txt"], "--out: got x.txt"),
        (restoring, ["{store}", "{others}"], "store: holds 8 x 8 grey, expected images of 12 x 12"),
        (restoring, ["{others}", "{store}"], "others: got 5 of 8 x 8 grey, expected 64 or more"),
        (gpu, ["{store}", "--device", "abacus"], "--device: got 'abacus', which is not available"),
        (
            gpu,
            ["{store}", "--device", "cuda:99"],
            "--device: got 'cuda:99', which is not available",
        ),
        (gpu, ["{store}", "--device", "cpu", "--batch", "1,0"], "--batch: got 1,0"),
        (gpu, ["{store}", "--device", "cpu", "--method", "x"], "method: "),
        (gpu, ["{store}", "--device", "cpu", "--peer", "nowhere"], "--peer: got nowhere"),
        (tolerance, ["{store}", "--tols", "0.1,x"], "--tols: got '0.1,x'"),
        (tolerance, ["{store}", "--tols", "nan"], "tol: got nan"),
        (tolerance, ["{store}", "--each", "0"], "'--each': "),
        (tolerance, ["{store}", "--seed", "-1"], "--seed: got -1"),
        (
            tolerance,
            ["{store}", "--others", "{others}"],
            "--others: got 5 of 16 x 16 RGB, expected",
        ),
    ],
)
@pytest.mark.usefixtures("_nothing_runs")
def test_bad_input_gives_one_line_before_any_work(
    module, arguments, message, make_store, smooth_images, tmp_path, capsys
):
    stores = {
        "store": make_store(smooth_images(5, (1, 8, 8))).path,
        "others": make_store(smooth_images(5, (3, 16, 16))).path,
        "folder": tmp_path,
    }
    argv = [text.format(**stores) for text in arguments]
    assert program("it", module.main, argv) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_gpu_reports_times_differences_and_the_least_time_of_a_step(
    make_store, smooth_images, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(gpu, "measure", lambda device: Rates(1, 1e12, 1e12))
    store = make_store(smooth_images(24, (3, 8, 8))).path
    methods = "golddiff-pca,pca,adaptive-pca"
    argv = [str(store), "--device", "cpu", "--batch", "1,2", "--method", methods, "--repeats", "1"]
    peer = ["--peer", str(write_checkout("release", tmp_path / "peer"))]
    assert program("gpu", gpu.main, [*argv, *peer, "--json", str(tmp_path / "gpu.json")]) == 0
    rows = json.loads((tmp_path / "gpu.json").read_text())["rows"]
    sides = [*methods.split(","), gpu.RELEASE]
    assert [(row["side"], row["batch"]) for row in rows] == [(s, b) for s in sides for b in (1, 2)]
    assert all(row["seconds"] > 0 for row in rows)
    counted = [row["floor"] is not None for row in rows]
    assert counted == [True] * 4 + [False] * 4
    assert max(row["apart"] for row in rows[:6]) < 1e-3
    assert gpu.RELEASE in capsys.readouterr().out


def test_the_least_work_reads_every_array_once(make_store, smooth_images):
    store = make_store(smooth_images(50, (3, 8, 8)))
    d, mask = 192, 192 * 192
    full = golddiff.PCA(store, 0.0)
    assert gpu.least(full, 1.0, 2) == (mask + 50 * d, 2 * mask * 50 * 2)
    # 50 pooled images are screened, and 10 of them are weighed.
    released = golddiff.GoldDiff(full, golddiff.PaperSchedule(10, 10, variant="released"))
    screening = 50 * d
    assert gpu.least(released, 0.01, 2) == (
        mask + 2 * 10 * d + 4 * screening, 2 * mask * 10 * 2 + 3 * screening * 2
    )  # fmt: skip
    # At high noise 10 images are drawn, and all of them are weighed.
    assert gpu.least(released, 60.0, 2) == (mask + 2 * 10 * d, 2 * mask * 10 * 2)
    assert gpu.least(golddiff.Optimal(store), 1.0, 2) is None
