"""The campaign's every line, on the processor; what it writes, and that it goes on where it was."""

import json
from pathlib import Path

import pytest
import torch

from golddiff_lab import gpu_campaign
from golddiff_lab.gpu import measure, page, rows
from golddiff_lab.gpu.rows import BATCHES, ROWS, Row
from golddiff_lab.programs import program
from tests.lab.checkouts import write_checkout

PAGE = Path(__file__).resolve().parents[2] / "docs" / "gpu.md"

without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without")


@pytest.fixture(autouse=True)
def _smaller(monkeypatch):
    small = {name: (shape, 24) for name, (shape, _) in rows.SMALL.items()}
    monkeypatch.setattr(rows, "SMALL", small)
    monkeypatch.setattr(rows, "SMALL_ENLARGED", 40)
    for module in (gpu_campaign, page):
        monkeypatch.setattr(module, "BATCHES", (1, 2))
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def status_of(*arguments):
    return program("gpu_campaign", gpu_campaign.main, [*map(str, arguments)])


def campaign(*arguments):
    return status_of("--dry-run", *arguments)


def test_a_dry_run_goes_through_every_row_and_goes_on_where_it_was(tmp_path, capsys, monkeypatch):
    out, text = tmp_path / "gpu", f"# Figures\n\n{page.BEGIN}\nold\n{page.END}\nThe end.\n"
    (tmp_path / "page.md").write_text(text)
    peer = write_checkout("release", tmp_path / "peer")
    assert campaign("--out", out, "--peer", peer, "--page", tmp_path / "page.md") == 0
    told = json.loads((out / "gpu.json").read_text())
    assert [row["path"] for row in told["differences"]][:2] == ["Optimal", "PCA"]
    assert all(row["holds"] for row in told["differences"])
    assert [(row["row"], row["batch"]) for row in told["rows"]] == [
        (row.title, batch) for row in ROWS for batch in (1, 2)
    ]
    for row in told["rows"]:
        assert row["seconds"] > 0
        assert row["resident"] == ("streamed" not in row["row"] and "adaptive" not in row["row"])
        assert (row["floor_seconds"] is None) == ("adaptive" in row["row"])
    assert {row["row"] for row in told["rows"] if "peer_seconds" in row} == {
        row.title for row in ROWS if row.support == "golden" and not row.streamed
    }
    written = (tmp_path / "page.md").read_text()
    assert written.startswith("# Figures\n")
    assert written.endswith("The end.\n")
    assert "A dry run" in written
    assert "\nold\n" not in written
    assert (out / "gpu.md").read_text() in written
    assert json.loads((tmp_path / "page.json").read_text()) == told
    capsys.readouterr()

    # A second run measures nothing, and tells the same.
    monkeypatch.setattr(measure, "measured", None)
    monkeypatch.setattr(gpu_campaign.differences, "_compared", None)
    assert campaign("--out", out, "--peer", peer) == 0
    again = json.loads((out / "gpu.json").read_text())
    assert again["rows"] == told["rows"]


def test_without_time_nothing_is_begun_and_every_row_stands_as_not_measured(tmp_path, capsys):
    assert campaign("--out", tmp_path, "--minutes", "0.001") == 0
    told = json.loads((tmp_path / "gpu.json").read_text())
    assert told["rows"] == []
    assert (tmp_path / "gpu.md").read_text().count(page.NOT_MEASURED) == 1 + 2 * len(ROWS)
    assert "MNIST: no time left" in capsys.readouterr().out


def test_the_page_of_the_docs_is_the_figures_that_are_kept_with_it(monkeypatch):
    monkeypatch.setattr(page, "BATCHES", BATCHES)
    told = json.loads(PAGE.with_suffix(".json").read_text())
    assert page.between(PAGE, page.lines(told)) == PAGE.read_text()


def test_the_paper_s_times_are_read_from_its_tables():
    assert [row.paper_seconds for row in ROWS] == [
        0.019, 0.087, None, None, 2.802, 0.351, None, 2.607,
    ]  # fmt: skip


def test_the_least_work_is_every_array_once():
    read, operations = measure.golden_work((3, 8, 8), 50, 10, 20, 2, 192 * 192)
    assert read == 192 * 192 + 50 * 4 * 192 + 2 * (20 + 10) * 192
    assert operations == 2 * 192**2 * 10 * 2 + 3 * 50 * 192 * 2


def test_what_is_not_chosen_from_is_not_read():
    read, operations = measure.golden_work((1, 4, 4), 10, 10, 10, 1, 256)
    assert read == 256 + 10 * 16
    assert operations == 2 * 256 * 10


def test_a_row_s_subsets_are_the_released_code_s():
    row = Row("x", "mnist", None, 0.02, k=(1 / 15, 2 / 15))
    assert [row.schedule.budgets(sigma, 15_000)[1] for sigma in (1e-9, 1e9)] == [1000, 2000]


@without_gpu
def test_without_a_gpu_one_line_says_so(tmp_path, capsys):
    assert status_of("--out", tmp_path) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "device: no GPU is to be seen" in error


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device", "abacus"], "device: got 'abacus'"),
        (["--device", "cpu", "--data", "nowhere"], "data: nowhere has no pack mnist"),
        (["--dry-run", "--minutes", "0"], "minutes: got 0.0"),
        (["--dry-run", "--peer", "nowhere"], "peer: got nowhere"),
        (["--dry-run", "--page", "nowhere.md"], "page: nowhere.md has no lines"),
    ],
)
def test_bad_options_are_told_before_any_work(options, words, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(gpu_campaign, "measured_rates", None)
    assert status_of("--out", tmp_path, *options) == 2
    assert words in capsys.readouterr().err
