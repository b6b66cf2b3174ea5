"""The weights are the least squares ones, found on images that the denoisers have not seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff import PCA, Blend, GaussianMixture, GoldDiff, PaperSchedule, Wiener
from golddiff.calibration import LeavingOut, calibrate, simplex_least_squares


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(200, (1, 6, 6)))


@given(st.integers(1, 4), st.integers(0, 10_000))
def test_no_other_weights_have_less_error(count, seed):
    rng = np.random.default_rng(seed)
    truth = rng.normal(size=(5, 30)).astype(np.float32)
    predictions = [
        truth + rng.normal(size=truth.shape).astype(np.float32) * scale
        for scale in rng.uniform(0.1, 3, count)
    ]
    found = simplex_least_squares(predictions, truth)
    assert found.min() >= 0
    assert found.sum() == pytest.approx(1)

    def error(weights):
        blended = sum(w * p for w, p in zip(weights, predictions, strict=True))
        spread = np.mean([((p - truth) ** 2).sum() for p in predictions])
        return ((blended - truth) ** 2).sum() + 5e-3 * spread * (weights**2).sum()

    for other in [*np.eye(count), *rng.dirichlet(np.ones(count), 20)]:
        assert error(found) <= error(other) * (1 + 1e-6)


def test_predictions_that_do_not_differ_weigh_the_same():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(3, 4)).astype(np.float32)
    assert np.allclose(simplex_least_squares([truth, truth], truth), 0.5)
    assert np.allclose(simplex_least_squares([truth + 1, truth + 1], truth), 0.5)


def test_a_perfect_prediction_has_all_the_weight_but_the_ridge():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(3, 40)).astype(np.float32)
    assert simplex_least_squares([truth, truth + 1], truth)[0] > 0.99


def test_no_support_holds_an_image_left_out(store, queries):
    rows = np.arange(0, 200, 3)
    schedule = LeavingOut(PaperSchedule(variant="released"), rows)
    x = queries(store, 1.0).flatten(1).numpy()
    supports = schedule.supports(store, x, 1.0, None, 0)
    assert all(len(s) > 0 and not np.isin(s.rows, rows).any() for s in supports)
    whole = LeavingOut(PaperSchedule(variant="released"), np.arange(200))
    assert all(len(s) > 0 for s in whole.supports(store, x, 1.0, None, 0))
    assert whole.budgets(1.0, 200) == PaperSchedule(variant="released").budgets(1.0, 200)


def test_a_blend_has_no_more_error_than_either_half(store):
    rows = np.arange(20)
    halves = [
        GoldDiff(PCA(store, 0.05), LeavingOut(PaperSchedule(variant="released"), rows)),
        GaussianMixture(store, rows=np.arange(20, 200)),
    ]
    sigmas = (0.1, 0.5, 2.0)
    both = calibrate(halves, rows, sigmas)
    alone = [calibrate([half], rows, sigmas) for half in halves]
    for level in range(3):
        assert both.errors[level] < 1.01 * min(a.errors[level] for a in alone)
    assert both.mean_log_error() <= min(a.mean_log_error() for a in alone)
    assert [sigma for sigma, _ in both.weights] == list(sigmas)
    Blend(halves, both.weights)  # they are weights


def test_the_seed_decides(store):
    rows = np.arange(10)
    first, second, third = (
        calibrate([Wiener(store), GaussianMixture(store, 2)], rows, (0.5,), seed).errors
        for seed in (0, 0, 1)
    )
    assert first == second != third
