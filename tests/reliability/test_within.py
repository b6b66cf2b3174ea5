"""How often a schedule is within its tol, as the long check counts it, on a small set."""

import json
import sys

import numpy as np
import pytest
import torch

from golddiff import ImageStore, Optimal
from golddiff.noise import ddim_sigmas
from reliability import within


@pytest.fixture
def report(smooth_images, tmp_path, monkeypatch, capsys):
    """report(*arguments): what was written and what was printed, of 400 images and 40 others."""
    images = smooth_images(440)
    ImageStore.build(images[:400], tmp_path / "first.store")
    ImageStore.build(images, tmp_path / "whole.store")
    monkeypatch.setenv("GOLDDIFF_CACHE", str(tmp_path / "cache"))

    def make(*arguments):
        out = tmp_path / "within.json"
        paths = [str(tmp_path / "first.store"), "--whole", str(tmp_path / "whole.store")]
        monkeypatch.setattr(sys, "argv", ["within", *paths, "--out", str(out), *arguments])
        within.main()
        return json.loads(out.read_text()), capsys.readouterr().out

    return make


@pytest.mark.parametrize("method", within.METHODS)
def test_a_tol_of_0_is_the_full_scan(report, method):
    levels, said = report("--method", method, "--tol", "0", "--queries", "4")
    assert [level["sigma"] for level in levels] == ddim_sigmas(within.STEPS)
    assert max(max(level["errors"]) for level in levels) < 1e-5
    assert f"of {10 * 4} within" in said


def test_errors_are_counted_query_by_query(report):
    levels, said = report("--tol", "0.2", "--queries", "6")
    errors = np.array([level["errors"] for level in levels])
    assert errors.shape == (10, 6)
    assert f"tol 0.2: {(errors <= 0.2).sum()} of 60 within" in said


def test_half_the_queries_are_images_that_are_not_in_the_set(smooth_images, make_store):
    store, others = make_store(smooth_images(100)), torch.zeros(5, 3, 8, 8)
    made = within.queries(store, Optimal(store), others, 4, seed=0)
    for sigma, x in zip(ddim_sigmas(within.STEPS), made, strict=True):
        assert x.shape == (4, 3, 8, 8)
        assert abs(float(x[2:].std()) / sigma - 1) < 0.2
