import math

import pytest
import torch

import golddiff
from golddiff_lab.truth import full_scans, reference_of, text_of


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(40))


def test_the_reference_is_the_full_scan_of_the_base(store):
    def reference(denoiser):
        return text_of(reference_of(denoiser, None))

    assert reference(golddiff.GoldDiff(golddiff.Optimal(store))) == "Optimal(store)"
    assert reference(golddiff.GoldDiff(golddiff.PCA(store, 0.1))) == (
        "PCA(store, mask_threshold=0.1)"
    )
    kamb = golddiff.GoldDiff(golddiff.Kamb(store, 5, "none"))
    assert reference(kamb) == "Kamb(store, patch_sizes=5, boundary='none')"
    # The average of batches is measured against the exact softmax.
    assert reference_of(golddiff.PCA(store, weighting="wss"), None).weighting == "ss"
    assert reference(golddiff.Wiener(store)) == "PCA(store)"
    assert reference_of(golddiff.Wiener(store), 0.07).mask_threshold == 0.07


def test_the_reference_of_scfdm_is_its_own_full_scan(store, queries):
    smoothed, x = golddiff.SCFDM(store, 0.5, copies=3), queries(store, 1.0)
    reference = reference_of(golddiff.GoldDiff(smoothed), None)
    assert text_of(reference) == "SCFDM(store, smoothing=0.5, copies=3)"
    assert torch.equal(full_scans(reference, [(1.0, x)])[0], smoothed(x, 1.0))


def test_full_scans_are_the_estimators_own_calls(store, queries):
    optimal, done = golddiff.Optimal(store), []
    levels = [(sigma, queries(store, sigma, b)) for sigma, b in ((20.0, 2), (1.0, 3))]
    scans = full_scans(optimal, levels, watch=lambda *counts: done.append(counts))
    for (sigma, x), scan in zip(levels, scans, strict=True):
        assert torch.equal(scan, optimal(x, sigma))
    assert done == [(1, 2), (2, 2)]


def test_queries_that_take_too_long_are_left_out(store, queries):
    optimal, x = golddiff.Optimal(store), queries(store, 1.0, 3)
    for seconds, count in ((1e-9, 0), (1e9, 3), (math.inf, 3)):
        (scan,) = full_scans(optimal, [(1.0, x)], seconds)
        assert scan.shape == (count, *store.shape)
    assert full_scans(optimal, [(1.0, x[:0])], 1.0)[0].shape == (0, *store.shape)
