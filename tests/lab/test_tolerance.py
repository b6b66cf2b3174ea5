"""The program that counts how often adaptive supports keep their tolerance, on a small store."""

import json

import pytest
import torch

from golddiff import Optimal
from golddiff.noise import ddim_sigmas
from golddiff_lab import tolerance
from golddiff_lab.programs import program

EACH = 2  # queries of a kind


@pytest.fixture
def measure(smooth_images, make_store, tmp_path, monkeypatch, capsys):
    """measure(*arguments): the records and the output, for 100 images and 20 others."""
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    images = smooth_images(120)
    store, others = make_store(images[:100]), make_store(images[100:])

    def call(*arguments):
        out = tmp_path / "tolerance.json"
        argv = [str(store.path), "--others", str(others.path), "--each", str(EACH)]
        status = program("tolerance", tolerance.main, [*argv, "--json", str(out), *arguments])
        captured = capsys.readouterr()
        records = json.loads(out.read_text())["records"] if status == 0 else None
        return records, captured.out + captured.err

    return call


@pytest.mark.parametrize("method", ["optimal", "pca", "scfdm"])
def test_a_tol_of_0_is_the_full_scan(measure, method):
    records, _ = measure("--method", method, "--tols", "0")
    assert sorted({r["sigma"] for r in records}, reverse=True) == ddim_sigmas(10)
    assert {r["kind"] for r in records} == set(tolerance.KINDS)
    assert max(r["error"] for r in records) < 1e-5


def test_the_table_counts_the_queries_within_the_tolerance(measure):
    records, output = measure("--tols", "0.2,0.05")
    assert len(records) == 2 * 10 * EACH * len(tolerance.KINDS)
    for tol in (0.2, 0.05):
        within = [r["error"] <= tol for r in records if r["tol"] == tol]
        line = next(x for x in output.splitlines() if f"| {tol:g} " in x and " all |" in x)
        assert f" {sum(within)}/{len(within)} |" in line


def test_a_method_without_supports_is_refused(measure):
    records, output = measure("--method", "wiener")
    assert records is None
    assert "got 'wiener'" in output


def test_queries_of_the_second_kind_are_noisy_images_of_the_other_store(smooth_images, make_store):
    store, others = make_store(smooth_images(100)), make_store(smooth_images(5, seed=9))
    levels = tolerance.levels_of(Optimal(store), others, [5.0, 0.01], EACH, seed=0)
    kind = slice(EACH, 2 * EACH)
    (_, high), (_, low) = levels
    noise = (high[kind] - others.images([0, 1])) / 5.0
    assert torch.allclose(low[kind], others.images([0, 1]) + 0.01 * noise, atol=1e-4)
