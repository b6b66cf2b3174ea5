"""Cost against the number of images: prefixes of a store, fitted exponents, and the command."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.cli import run
from golddiff.system.errors import ArgumentError
from golddiff_lab import race, timing
from golddiff_lab.bench import scaling
from golddiff_lab.bench.prefixes import stores_for
from golddiff_lab.bench.scaling_job import ScalingJob
from golddiff_lab.fit import exponent, ratio
from golddiff_lab.machine import Rates
from tests.lab.in_process import InProcess


@pytest.fixture(autouse=True)
def _empty_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(120))


def job(store, sizes=(40, 120), methods=("golddiff-pca",), **changes):
    settings = {"batch": 3, "seconds": 0.005, **changes}
    return ScalingJob(str(store.path), sizes, list(methods), **settings)


def ignore(line):
    """Ignore a line of progress."""


class TestFit:
    @given(
        p=st.floats(-2, 2),
        c=st.floats(1e-3, 1e3),
        sizes=st.lists(st.integers(1, 10**7), min_size=2, max_size=6, unique=True),
    )
    def test_the_exponent_of_a_power_law_is_recovered(self, p, c, sizes):
        assert exponent(sizes, [c * n**p for n in sizes]) == pytest.approx(p, abs=1e-5)

    def test_unknown_costs_are_ignored(self):
        assert exponent([10, 100, 1000], [1.0, None, 100.0]) == pytest.approx(1.0)
        assert exponent([10, 100], [1.0, None]) is None
        assert exponent([10, 100], [0.0, 1.0]) is None
        assert ratio([2.0, None, 6.0]) == 3.0
        assert ratio([2.0, None]) is None
        assert ratio([0.0, 1.0]) is None


class TestStores:
    def test_smaller_stores_hold_the_first_images_and_the_factor_of_all(self, store):
        small, large = stores_for(job(store), ignore)
        assert (small.n, large.n) == (40, 120)
        assert np.array_equal(small.flat, store.flat[:40])
        assert large.path == store.path
        assert np.array_equal(small.factor().eigenvectors, large.factor().eigenvectors)
        assert small.factor().images == 120
        small.verify()
        repeated = stores_for(job(store), ignore)[0]
        assert repeated.path == small.path
        assert repeated.factor().images == 120

    def test_the_largest_size_may_be_a_prefix_of_the_store(self, store):
        small, large = stores_for(job(store, (40, 80), ["optimal"]), ignore)
        assert (small.n, large.n) == (40, 80)
        assert np.array_equal(large.flat, store.flat[:80])

    def test_sizes_above_the_stores_are_refused(self, store):
        with pytest.raises(ArgumentError, match=r"sizes: got 500, but .* has only 120"):
            stores_for(job(store, (40, 500)), ignore)
        with pytest.raises(ArgumentError, match=r"sizes: got 5,000, but .*digits.* has only 1,797"):
            stores_for(ScalingJob("digits", (40, 5000)), ignore)


def test_queries_come_from_golddiff_pca_only_if_a_method_has_masks(store):
    assert job(store, methods=("adaptive-optimal", "optimal")).passing == "golddiff-optimal"
    assert job(store, methods=("adaptive-optimal", "adaptive-pca")).passing == "golddiff-pca"


class TestRun:
    @pytest.fixture(autouse=True)
    def _in_process(self, monkeypatch):
        """Measure cells in this process, without pauses, and record them: others start slowly."""
        self.cells = []

        def recorded(spec):
            self.cells.append((spec.store.name, spec.name))
            return InProcess(spec)

        monkeypatch.setattr(race, "Process", recorded)
        monkeypatch.setattr(scaling, "measure", lambda: Rates(1, 1e9, 1e9))
        monkeypatch.setattr(timing, "PAUSE", 0.0)

    def test_a_cell_is_measured_once_unless_fresh(self, store):
        settings = job(store, methods=("optimal", "golddiff-optimal"))
        first = scaling.run(settings)
        assert len(self.cells) == 4
        second = scaling.run(settings)
        assert len(self.cells) == 4
        assert first.cells == second.cells
        scaling.run(job(store, (40, 80, 120), methods=("optimal",)))
        assert len(self.cells) == 5
        scaling.run(job(store, methods=("optimal",), fresh=True))
        assert len(self.cells) == 7

    def test_errors_are_measured_against_the_full_scan_of_the_same_images(self, store):
        settings = job(store, methods=("optimal", "golddiff-optimal"), truth_queries=2)
        outcome = scaling.run(settings)
        for n in (40, 120):
            exact = outcome.cells[n, "optimal"]["levels"]
            assert max(level["rmse"] for level in exact) < 1e-5
            assert {level["truth_queries"] for level in exact} <= {1, 2}
            assert max(v["rmse"] for v in outcome.cells[n, "golddiff-optimal"]["levels"]) > 1e-3
            assert [level["images"] for level in exact] == [n] * 10
            assert outcome.cells[n, "optimal"]["run"]["seconds"] > 0

    def test_methods_with_the_same_full_scan_share_it(self, store, monkeypatch):
        scanned, full_scans = [], scaling.truth.full_scans
        monkeypatch.setattr(
            scaling.truth, "full_scans",
            lambda reference, *more: scanned.append(reference) or full_scans(reference, *more),
        )  # fmt: skip
        scaling.run(job(store, methods=("optimal", "golddiff-optimal", "pca")))
        names = [(reference.store.n, type(reference).__name__) for reference in scanned]
        assert names == [(40, "Optimal"), (40, "PCA"), (120, "Optimal"), (120, "PCA")]

    def test_a_failed_run_continues_with_the_missing_cell(self, store, monkeypatch):
        settings = job(store, methods=("optimal", "golddiff-optimal"))
        process = race.Process

        def fail_at_the_fourth_cell(*arguments):
            if len(self.cells) == 3:
                raise ArgumentError("out of memory")
            return process(*arguments)

        monkeypatch.setattr(race, "Process", fail_at_the_fourth_cell)
        with pytest.raises(ArgumentError, match="out of memory"):
            scaling.run(settings)
        monkeypatch.setattr(race, "Process", process)
        scaling.run(settings)
        assert len(self.cells) == len(set(self.cells)) == 4

    def test_the_command_writes_cells_and_a_picture(self, store, tmp_path, capsys):
        out, picture = tmp_path / "s.json", tmp_path / "s.png"
        status = run(
            ["bench", "scaling", "--data", str(store.path), "--sizes", "40,120", "--method",
             "golddiff-pca,wiener", "--batch", "2", "--seconds", "0.005", "--truth-queries", "1",
             "--json", str(out), "--plot", str(picture)]
        )  # fmt: skip
        output = capsys.readouterr().out
        assert status == 0
        assert "RMSE, 120" in output
        assert "one factor (masks) for all sizes, of 120 images" in output
        assert picture.stat().st_size > 1000
        figures = json.loads(out.read_text())
        assert figures["sizes"] == [40, 120]
        assert "cpu exponent" in output
        for cell in figures["cells"]:
            assert len(cell["levels"]) == 10
            assert all(level["processor_seconds"] > 0 for level in cell["levels"])
        assert {cell["n"] for cell in figures["cells"]} == {40, 120}
        assert run(["plot", str(out)]) == 0
        assert out.with_suffix(".plot.png").stat().st_size > 1000

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--sizes", "100"], "sizes: got"),
            (["--sizes", "100,100"], "sizes: got"),
            (["--sizes", "1.5,3"], "whole numbers"),
            (["--sizes", "1,3"], "2 or more"),
            (["--method", "magic"], "method: got 'magic'"),
            (["--method", "optimal", "--tol", "0.1"], "tol: does not apply"),
            (["--batch", "0"], "batch-size: got 0"),
            (["--seconds", "0"], "seconds: got 0"),
            (["--memory-limit", "-1"], "memory-limit: got -1"),
            (["--threads", "0"], "threads: got 0"),
            (["--plot", "x.svg"], "plot: got"),
        ],
    )
    def test_bad_input_gives_one_line(self, store, fails, arguments, message, monkeypatch):
        monkeypatch.setattr(scaling, "mixed", None)
        assert message in fails("bench", "scaling", "--data", str(store.path), *arguments)
