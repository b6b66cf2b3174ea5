import json

import pytest
import torch

from golddiff.cli import run
from golddiff_lab.gpu.cases import CASES, Case
from golddiff_lab.gpu.run import GpuJob, _images, least_work
from tests.lab.checkouts import write_checkout

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without")


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch, tmp_path):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_the_rows_are_the_papers():
    assert CASES["cifar10"].n == 50_000
    assert CASES["cifar10"].paper_seconds == 0.087
    for case in CASES.values():
        # An order of magnitude, or more.
        assert case.aim_seconds * 10 <= case.paper_seconds * 1.2


def test_the_least_work_is_every_array_once():
    read, operations = least_work((3, 8, 8), 100, 50, 10, 20, "released", 2, 192 * 192)
    assert read == 192 * 192 + 50 * 4 * 192 + 2 * (20 + 10) * 192
    assert operations == 2 * 192**2 * 10 * 2 + 3 * 50 * 192 * 2


def test_what_is_not_chosen_from_is_not_read():
    read, operations = least_work((1, 4, 4), 10, 10, 10, 10, "text", 1, 256)
    assert read == 256 + 10 * 16
    assert operations == 2 * 256 * 10


def test_patches_stand_in_for_a_data_set_at_its_size():
    case = Case("small", 50, (3, 8, 8), 0.03, 1.0, None, 0.1, classes=5)
    job = GpuJob([case], [1], torch.device("cpu"), {})
    store, said = _images(case, job)
    assert said == "patches, N = 50"
    assert store.shape == (3, 8, 8)
    assert len(store.rows_of(2)) == 10
    assert _images(case, job)[0].path == store.path


@without_gpu
def test_without_a_gpu_one_line_says_so(capsys):
    assert run(["bench", "gpu"]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "device: no GPU is to be seen" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "abacus"], "device: got 'abacus'"),
        (["--device", "cpu"], "device: cpu needs --quick"),
        (["--device", "cpu", "--quick", "--batch", "0"], "batch-size: got 0"),
        (["--device", "cpu", "--quick", "--variant", "new"], "variant: got 'new'"),
        (["--device", "cpu", "--quick", "--data", "x"], "data: got 'x'"),
        (["--device", "cpu", "--quick", "--peer", "nowhere"], "peer: got nowhere"),
    ],
)
def test_bad_options_are_told(options, words, capsys):
    assert run(["bench", "gpu", *options]) == 2
    assert words in capsys.readouterr().err


def test_it_measures_the_smallest_case_on_a_cpu(tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert run(["bench", "gpu", "--device", "cpu", "--quick", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["batch"] for row in rows] == [1, 2]
    for row in rows:
        assert row["data"] == "patches, N = 400"
        assert row["seconds"] > 0
        assert row["times_floor"] == pytest.approx(row["seconds"] / row["floor_seconds"])
    assert "x its floor" in capsys.readouterr().out


def test_the_released_code_runs_beside_ours(tmp_path, capsys):
    peer = write_checkout("release", tmp_path / "peer")
    path = tmp_path / "figures.json"
    options = ["--device", "cpu", "--quick", "--peer", str(peer), "--json", str(path)]
    assert run(["bench", "gpu", *options]) == 0
    for row in json.loads(path.read_text())["rows"]:
        assert row["times_faster"] == pytest.approx(row["peer_seconds"] / row["seconds"])
    assert "released code" in capsys.readouterr().out
