"""Whether adaptive supports keep their tolerance, as it is counted, on a small set."""

import json

import pytest
import torch

from golddiff import Optimal
from golddiff.noise import ddim_sigmas
from golddiff_lab import promise
from golddiff_lab.programs import program

EACH = 2  # queries of a kind


@pytest.fixture
def told(smooth_images, make_store, tmp_path, monkeypatch, capsys):
    """told(*arguments): each query's figures and what was printed, of 100 images and 20 others."""
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))
    images = smooth_images(120)
    store, others = make_store(images[:100]), make_store(images[100:])

    def make(*arguments):
        out = tmp_path / "promise.json"
        given = [str(store.path), "--others", str(others.path), "--each", str(EACH)]
        status = program("promise", promise.main, [*given, "--json", str(out), *arguments])
        said = capsys.readouterr()
        records = json.loads(out.read_text())["records"] if status == 0 else None
        return records, said.out + said.err

    return make


@pytest.mark.parametrize("method", ["optimal", "pca", "scfdm"])
def test_a_tol_of_0_is_the_full_scan(told, method):
    records, _ = told("--method", method, "--tols", "0")
    assert sorted({r["sigma"] for r in records}, reverse=True) == ddim_sigmas(10)
    assert {r["kind"] for r in records} == set(promise.KINDS)
    assert max(r["error"] for r in records) < 1e-5


def test_errors_are_counted_query_by_query(told):
    records, said = told("--tols", "0.2,0.05")
    assert len(records) == 2 * 10 * EACH * len(promise.KINDS)
    for tol in (0.2, 0.05):
        of_it = [r["error"] <= tol for r in records if r["tol"] == tol]
        line = next(x for x in said.splitlines() if f"| {tol:g} " in x and " all |" in x)
        assert f" {sum(of_it)}/{len(of_it)} |" in line


def test_what_has_no_supports_is_told(told):
    records, said = told("--method", "wiener")
    assert records is None
    assert "got 'wiener'" in said


def test_the_second_kind_are_images_that_are_not_in_the_set(smooth_images, make_store):
    store, others = make_store(smooth_images(100)), make_store(smooth_images(5, seed=9))
    levels = promise.levels_of(Optimal(store), others, [5.0, 0.01], EACH, seed=0)
    kind = slice(EACH, 2 * EACH)
    (_, high), (_, low) = levels
    noise = (high[kind] - others.images([0, 1])) / 5.0
    assert torch.allclose(low[kind], others.images([0, 1]) + 0.01 * noise, atol=1e-4)
