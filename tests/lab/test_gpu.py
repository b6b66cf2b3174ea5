import json

import pytest
import torch
from golddiff_lab.gpu.measure import Ceilings

from golddiff.cli import run
from golddiff_lab.gpu.cases import CASES
from golddiff_lab.gpu.floor import step_work
from golddiff_lab.gpu.memory_store import patches_for

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without")


@pytest.fixture(autouse=True)
def _no_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_the_rows_are_the_papers():
    assert CASES["cifar10"].n == 50_000
    assert CASES["cifar10"].paper_seconds == 0.087
    for case in CASES.values():
        # An order of magnitude, or more.
        assert case.aim_seconds * 10 <= case.paper_seconds * 1.2


def test_the_floor_is_the_larger_of_bytes_and_operations():
    work = step_work((3, 8, 8), 100, 50, 10, 20, "released", 2, 192 * 192, 2)
    screened = 50 * (2 * 3 * 8 * 8 + 4)
    assert work.bytes == 2 * 192 * 192 + screened + 2 * (20 + 10) * 192
    assert work.operations == 2 * 2 * 192**2 * 10 * 2 + 4 * 50 * 192 * 2
    assert work.floor(Ceilings(copy=1.0, matrix=1e30)) == work.bytes
    assert work.floor(Ceilings(copy=1e30, matrix=1.0)) == work.operations


def test_what_is_not_chosen_from_is_not_read():
    everything = step_work((1, 4, 4), 10, 10, 10, 10, "text", 1, 256, 1)
    assert everything.bytes == 2 * 256 + 10 * 16
    assert everything.operations == 2 * 256 * 10


def test_patches_stand_in_for_a_data_set_at_its_size():
    from golddiff_lab.gpu.cases import Case

    case = Case("small", 50, (3, 8, 8), 0.03, 1.0, None, 0.1, classes=5)
    store = patches_for(case, torch.device("cpu"))
    assert store.images([3]).shape == (1, 3, 8, 8)
    assert len(store.rows_of(2)) == 10
    assert store.proxies((3, 2, 2)).shape == (50, 12)
    assert len(store.factor().mean) == 192


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
        (["--device", "cpu", "--quick", "--batch", "0"], "batch: got 0"),
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
