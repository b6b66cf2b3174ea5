"""Cost against the number of images: prefixes, one pass for all truths, fits, and the command."""

import json
import multiprocessing

import numpy as np
import pytest
import torch
from golddiff_lab.race import truth
from golddiff_lab.scaling.fit import exponent, ratio
from golddiff_lab.scaling.masks import share_masks
from golddiff_lab.scaling.memory import disk_bytes, now, watched
from golddiff_lab.scaling.queries import held_out, mixed, passing
from golddiff_lab.scaling.truth import full_scans, one_pass
from hypothesis import given
from hypothesis import strategies as st

import golddiff
from golddiff.cli import run
from golddiff.estimators import kept_masks
from golddiff.estimators.registry import make_denoiser
from golddiff.system.errors import ArgumentError
from golddiff_lab.scaling import run as scaling_run
from golddiff_lab.scaling.cell import load_levels, measured, save_levels
from golddiff_lab.scaling.job import ScalingJob
from golddiff_lab.scaling.stores import same_factor, share_factor, stores_for


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
        with pytest.raises(ArgumentError, match="sizes: got 5,000, but digits has only 1,797"):
            stores_for(ScalingJob(("digits",), (40, 5000)))

    def test_stores_that_do_not_compare(self, store, make_store, smooth_images):
        other = make_store(smooth_images(30, (1, 8, 8)))
        with pytest.raises(ArgumentError, match="one shape and different sizes"):
            stores_for(ScalingJob((str(store.path), str(other.path))))


class TestQueries:
    def test_points_of_a_run_and_held_out_images_take_turns(self, store):
        levels = mixed(store, make_denoiser("golddiff-optimal", store), [5.0, 0.01], 4, seed=0)
        assert [x.shape for x in levels] == [(4, 3, 8, 8)] * 2
        clean = held_out(store, 2, seed=0)
        noise = (levels[0][1::2] - clean) / 5.0
        assert torch.allclose(levels[1][1::2], clean + 0.01 * noise, atol=1e-4)

    def test_held_out_images_are_not_in_the_set(self, store):
        distances = torch.cdist(held_out(store, 20, 0).flatten(1), store.images().flatten(1))
        assert distances.min() > 0.05

    def test_no_masks_where_no_method_has_any(self):
        assert passing(["adaptive-optimal", "optimal"]) == "golddiff-optimal"
        assert passing(["adaptive-optimal", "adaptive-pca"]) == "golddiff-pca"

    def test_points_cannot_be_held_out(self, make_store):
        with pytest.raises(ArgumentError, match="expected uint8 images"):
            held_out(make_store(torch.randn(20, 2)), 2, 0)

    def test_a_file_keeps_them(self, tmp_path, store):
        levels = mixed(store, make_denoiser("golddiff-optimal", store), [5.0, 0.01], 2, seed=0)
        save_levels(tmp_path / "q", [5.0, 0.01], levels)
        for (sigma, x), kept, level in zip(
            load_levels(tmp_path / "q"), levels, [5.0, 0.01], strict=True
        ):
            assert sigma == level
            assert torch.equal(x, kept)


class TestTruth:
    @pytest.mark.parametrize("make", [golddiff.Optimal, golddiff.PCA])
    def test_one_pass_is_every_full_scan(self, store, queries, make, monkeypatch):
        monkeypatch.setattr("golddiff_lab.scaling.truth.ROWS_AT_ONCE", 50)
        levels = [(sigma, queries(store, sigma, b)) for sigma, b in ((20.0, 2), (1.0, 3))]
        for (sigma, x), out in zip(levels, one_pass(make(store), levels), strict=True):
            assert torch.allclose(out, make(store)(x, sigma), atol=2e-6)

    def test_answers_are_kept_and_shared_with_bench_step(self, store, queries, monkeypatch):
        optimal, x = golddiff.Optimal(store), queries(store, 1.0, 3)
        first = full_scans(optimal, [(1.0, x)], 1e9)
        monkeypatch.setattr(golddiff.Optimal, "posterior", None)  # cannot scan any more
        monkeypatch.setattr("golddiff_lab.scaling.truth._affordable", lambda *_: 0)
        assert torch.equal(full_scans(optimal, [(1.0, x)], 1e9)[0], first[0])
        assert torch.equal(truth.full_scan(optimal, x, 1.0), first[0])

    def test_what_takes_too_long_is_left_out(self, store, queries):
        x = queries(store, 1.0, 3)
        assert len(full_scans(golddiff.Optimal(store), [(1.0, x)], 1e-9)[0]) == 0

    def test_the_factor_is_part_of_its_name(self, store, queries, tmp_path, smooth_images):
        other = golddiff.ImageStore.build(smooth_images(60), tmp_path / "store")
        x = queries(other, 1.0, 1)[0]
        names = [truth.key(make(other), x, 1.0) for make in (golddiff.Optimal, golddiff.PCA)]
        other.factors.estimate(30)
        again = [truth.key(make(other), x, 1.0) for make in (golddiff.Optimal, golddiff.PCA)]
        assert names[0] == again[0]
        assert names[1] != again[1]


KEPT = "factor-*/masks/*.safetensors"


class TestMasks:
    @pytest.fixture(autouse=True)
    def _kept_however_small(self, monkeypatch):
        monkeypatch.setattr(kept_masks, "FEWEST_VALUES", 0)

    def test_they_are_made_once_and_read_again(self, store, tmp_path, monkeypatch, queries):
        share_masks(golddiff.GoldDiff(golddiff.PCA(store)), 1.0, tmp_path)
        share_masks(golddiff.Optimal(store), 1.0, tmp_path)
        (file,) = tmp_path.glob(KEPT)
        x = queries(store, 1.0)
        direct = golddiff.PCA(store)(x, 1.0)
        monkeypatch.setattr(
            "golddiff.estimators.kept_masks.locality_mask", None
        )  # none can be made
        pca = golddiff.PCA(store)
        share_masks(pca, 1.0, tmp_path)
        assert torch.equal(pca(x, 1.0), direct)
        assert list(tmp_path.glob(KEPT)) == [file]

    def test_other_masks_have_other_files(self, store, tmp_path):
        for threshold, sigma in ((0.02, 1.0), (0.03, 1.0), (0.02, 2.0)):
            share_masks(golddiff.PCA(store, threshold), sigma, tmp_path)
        assert len(list(tmp_path.glob(KEPT))) == 3


class TestMemory:
    def test_a_block_s_peak_is_no_less_than_what_was_held(self):
        with watched() as peak:
            held = np.ones(5_000_000)
            inside = now()
        if not inside:
            pytest.skip("no /proc/self/status")
        assert inside["anonymous"] >= held.nbytes
        assert peak["anonymous"] >= inside["anonymous"] - 1_000_000

    def test_bytes_read_from_disk_only_grow(self):
        before = disk_bytes()
        assert before is None or disk_bytes() >= before


class TestRun:
    @pytest.fixture(autouse=True)
    def _here(self, monkeypatch):
        """Cells in this process: starting others takes seconds."""
        self.cells = []

        def here(spec, watch):
            self.cells.append((spec.store.name, spec.method))
            return measured(spec, watch)

        monkeypatch.setattr(scaling_run, "in_a_process", here)
        monkeypatch.setattr(scaling_run, "measure", lambda: None)

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
        working = scaling_run.in_a_process

        def fails_at_last(spec, watch):
            if len(self.cells) == 3:
                raise ArgumentError("out of memory")
            return working(spec, watch)

        monkeypatch.setattr(scaling_run, "in_a_process", fails_at_last)
        with pytest.raises(ArgumentError, match="out of memory"):
            scaling_run.run(asked)
        monkeypatch.setattr(scaling_run, "in_a_process", working)
        scaling_run.run(asked)
        assert len(self.cells) == len(set(self.cells)) == 4

    def test_the_command(self, store, tmp_path, capsys, monkeypatch):
        from golddiff_lab.race.machine import Machine

        monkeypatch.setattr(scaling_run, "measure", lambda: Machine(1, 1e9, 1e9, 1e9, 1e9, 1e9))
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
            (["--memory-limit", "-1"], "memory_limit: got -1"),
            (["--threads", "0"], "threads: got 0"),
            (["--plot", "x.svg"], "plot: got"),
        ],
    )
    def test_bad_input_is_one_line(self, store, capsys, arguments, said):
        assert run(["bench", "scaling", "--data", str(store.path), *arguments]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert len(error.strip().splitlines()) == 1


def test_a_cell_in_a_process_of_its_own(store, tmp_path, monkeypatch):
    from golddiff.estimators.registry import MethodSettings
    from golddiff_lab.scaling.cell import CellSpec

    save_levels(tmp_path / "q", [1.0], [store.images([0, 1])])

    def spec(path):
        return CellSpec(
            path, "optimal", MethodSettings(), 0, tmp_path / "q", tmp_path / "out", 2, 1, 0.05,
            1, 1e9,
        )  # fmt: skip

    heard = []
    figures = scaling_run.in_a_process(spec(store.path), heard.append)
    assert figures["n"] == 120
    assert figures["memory"]["high_water"] > 10_000_000
    assert heard == ["sigma 1", "whole run"]
    monkeypatch.setattr(scaling_run.signal, "signal", lambda *_: None)
    ours, theirs = multiprocessing.Pipe()
    scaling_run._serve(spec(tmp_path / "nowhere"), theirs)
    kind, said = ours.recv()
    assert kind == "failed"
    assert "nowhere does not exist" in said
