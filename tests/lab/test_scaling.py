"""Cost against the number of images: prefixes, one pass for all truths, fits, and the command."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import golddiff
from golddiff.cli import run
from golddiff.estimators.registry import MethodSettings
from golddiff.system.errors import ArgumentError, StoreError
from golddiff_lab.fit import exponent, ratio
from golddiff_lab.machine import Rates
from golddiff_lab.process import Process
from golddiff_lab.scaling import run as scaling_run
from golddiff_lab.scaling.cell import Cell, CellSpec
from golddiff_lab.scaling.job import ScalingJob
from golddiff_lab.scaling.stores import same_factor, share_factor, stores_for
from tests.lab.here import Here


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(120))


def job(store, **changes):
    settings = {"sizes": (40, 120), "methods": ("golddiff-pca",), "batch": 3, "seconds": 0.05}
    return ScalingJob((str(store.path),), **{**settings, **changes})


class TestFit:
    @given(
        p=st.floats(-2, 2),
        c=st.floats(1e-3, 1e3),
        sizes=st.lists(st.integers(1, 10**7), min_size=2, max_size=6, unique=True),
    )
    def test_a_power_of_n_has_its_exponent(self, p, c, sizes):
        assert exponent(sizes, [c * n**p for n in sizes]) == pytest.approx(p, abs=1e-5)

    def test_what_is_not_known_does_not_count(self):
        assert exponent([10, 100, 1000], [1.0, None, 100.0]) == pytest.approx(1.0)
        assert exponent([10, 100], [1.0, None]) is None
        assert exponent([10, 100], [0.0, 1.0]) is None
        assert ratio([2.0, None, 6.0]) == 3.0
        assert ratio([2.0, None]) is None
        assert ratio([0.0, 1.0]) is None


class TestStores:
    def test_smaller_sets_are_the_first_images_with_the_masks_of_all(self, store):
        asked = job(store)
        small, large = share_factor(stores_for(asked), asked)
        assert (small.n, large.n) == (40, 120)
        assert np.array_equal(small.flat, store.flat[:40])
        assert large.path == store.path
        assert np.array_equal(small.factor().eigenvectors, large.factor().eigenvectors)
        assert small.factor().images == 120
        assert same_factor([small, large])
        small.verify()
        again = stores_for(asked)[0]
        assert again.path == small.path
        assert again.factor().images == 120

    def test_of_an_enlarged_set(self, store):
        asked = ScalingJob((f"enlarged:{store.path}",), (50, 200), ("golddiff-pca",))
        small, large = stores_for(asked)
        assert (small.n, large.n) == (50, 200)
        assert np.array_equal(large.flat[:120], store.flat)
        assert np.array_equal(small.flat, store.flat[:50])

    def test_several_stores_stay_as_they_are(self, store, make_store, smooth_images):
        other = make_store(smooth_images(30, seed=3))
        asked = ScalingJob((str(store.path), str(other.path)))
        stores = share_factor(stores_for(asked), asked)
        assert [s.n for s in stores] == [30, 120]
        assert not same_factor(stores)

    def test_too_few_images(self, store):
        with pytest.raises(ArgumentError, match=r"sizes: got 500, but .* has only 120"):
            stores_for(job(store, sizes=(40, 500)))
        with pytest.raises(ArgumentError, match=r"sizes: got 5,000, but .*digits.* has only 1,797"):
            stores_for(ScalingJob(("digits",), (40, 5000)))

    def test_stores_that_do_not_compare(self, store, make_store, smooth_images):
        other = make_store(smooth_images(30, (1, 8, 8)))
        with pytest.raises(ArgumentError, match="one shape and different sizes"):
            stores_for(ScalingJob((str(store.path), str(other.path))))


def test_no_masks_where_no_method_has_any(store):
    assert job(store, methods=("adaptive-optimal", "optimal")).passing == "golddiff-optimal"
    assert job(store, methods=("adaptive-optimal", "adaptive-pca")).passing == "golddiff-pca"


class TestRun:
    @pytest.fixture(autouse=True)
    def _here(self, monkeypatch):
        """Cells in this process: starting others takes seconds."""
        self.cells = []

        def make(spec):
            self.cells.append((spec.store.name, spec.method))
            return Cell(spec)

        monkeypatch.setattr(
            scaling_run, "Process", lambda name, _, spec, threads: Here(name, make, spec, threads)
        )
        monkeypatch.setattr(scaling_run, "measure", lambda: Rates(1, 1e9, 1e9))

    def test_every_cell_is_measured_once(self, store):
        asked = job(store, methods=("optimal", "golddiff-optimal"), sizes=(40, 80, 120))
        first = scaling_run.run(asked)
        assert len(self.cells) == 6
        second = scaling_run.run(asked)
        assert len(self.cells) == 6
        assert first.cells == second.cells
        scaling_run.run(job(store, methods=("optimal",), sizes=(40, 80, 120), fresh=True))
        assert len(self.cells) == 9

    def test_a_size_more_measures_that_size_alone(self, store):
        scaling_run.run(job(store, methods=("optimal",), sizes=(40, 120)))
        scaling_run.run(job(store, methods=("optimal",), sizes=(40, 80, 120)))
        assert len(self.cells) == 3

    def test_errors_are_to_the_full_scan_of_the_same_images(self, store):
        asked = job(store, methods=("optimal", "golddiff-optimal"), truth_queries=2)
        outcome = scaling_run.run(asked)
        for n in (40, 120):
            exact = outcome.cells[n, "optimal"]["levels"]
            assert max(level["rmse"] for level in exact) < 1e-5
            assert {level["truth_queries"] for level in exact} <= {1, 2}
            assert max(v["rmse"] for v in outcome.cells[n, "golddiff-optimal"]["levels"]) > 1e-3
            assert [level["images"] for level in exact] == [n] * 10
            assert [level["pixel_bytes"] for level in exact] == [n * 192] * 10

    def test_an_interrupted_run_goes_on_where_it_was(self, store, monkeypatch):
        asked = job(store, methods=("optimal", "golddiff-optimal"))
        working = scaling_run.Process

        def fails_at_last(*arguments):
            if len(self.cells) == 3:
                raise ArgumentError("out of memory")
            return working(*arguments)

        monkeypatch.setattr(scaling_run, "Process", fails_at_last)
        with pytest.raises(ArgumentError, match="out of memory"):
            scaling_run.run(asked)
        monkeypatch.setattr(scaling_run, "Process", working)
        scaling_run.run(asked)
        assert len(self.cells) == len(set(self.cells)) == 4

    def test_the_command(self, store, tmp_path, capsys):
        out, picture = tmp_path / "s.json", tmp_path / "s.png"
        code = run(
            ["bench", "scaling", "--data", str(store.path), "--sizes", "40,120", "--method",
             "golddiff-pca,wiener", "--batch", "2", "--seconds", "0.05", "--truth-queries", "1",
             "--json", str(out), "--plot", str(picture)]
        )  # fmt: skip
        said = capsys.readouterr().out
        assert code == 0
        assert "RMSE, 120" in said
        assert "one factor (masks) for all sizes, of 120 images" in said
        assert picture.stat().st_size > 1000
        figures = json.loads(out.read_text())
        assert figures["sizes"] == [40, 120]
        fit = figures["fits"]["golddiff-pca"]
        assert len(fit["levels"]) == 10
        assert fit["sum_of_levels"]["exponent"] is not None
        assert "cpu exponent" in said
        assert all(level["processor_seconds"]["costs"][0] > 0 for level in fit["levels"])
        assert {cell["n"] for cell in figures["cells"]} == {40, 120}

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            (["--sizes", "100"], "sizes: got"),
            (["--sizes", "100,100"], "sizes: got"),
            (["--sizes", "1.5,3"], "whole numbers"),
            (["--sizes", "1,3"], "2 or more"),
            (["--method", "magic"], "method: got 'magic'"),
            (["--method", "optimal", "--tol", "0.1"], "tol: does not apply"),
            (["--batch", "0"], "batch: got 0"),
            (["--seconds", "0"], "seconds: got 0"),
            (["--memory-limit", "-1"], "memory-limit: got -1"),
            (["--threads", "0"], "threads: got 0"),
            (["--plot", "x.svg"], "plot: got"),
        ],
    )
    def test_bad_input_is_one_line(self, store, capsys, arguments, said):
        assert run(["bench", "scaling", "--data", str(store.path), *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) == 1


def test_a_cell_in_a_process_of_its_own(store, tmp_path):
    spec = CellSpec(store.path, "optimal", MethodSettings(), 0, 2, 1, 0.05, 1e9)
    x = store.images([0, 1]).numpy()
    with Process("optimal", Cell, spec, 1) as cell:
        level = cell.ask("level", 1.0, x, golddiff.Optimal(store)(torch.from_numpy(x), 1.0).numpy())
        assert level["rmse"] < 1e-5
        assert cell.ask("run", 0.001)["images"] == 2
        figures = cell.ask("about")
    assert figures["n"] == 120
    assert figures["memory"]["high_water"] > 10_000_000
    missing = CellSpec(tmp_path / "nowhere", "optimal", MethodSettings(), 0, 2, 1, 0.05, 1e9)
    with (
        pytest.raises(StoreError, match=r"optimal: store: .*nowhere does not exist"),
        Process("optimal", Cell, missing, 1),
    ):
        pass
