"""The weights are inverse to the errors, found on images that the denoisers have not seen."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff import GaussianMixture, PaperSchedule, Wiener
from golddiff.estimators.calibration import (
    LeavingOut,
    denoising_errors,
    inverse_error_weights,
    is_symmetric,
    left_out,
)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(200, (1, 6, 6)))


@given(st.lists(st.floats(1e-6, 10), min_size=1, max_size=5))
def test_weights_are_inverse_to_the_errors(errors):
    weights = inverse_error_weights(np.array(errors))
    assert weights.sum() == pytest.approx(1)
    assert np.allclose(weights**2 * errors, weights[0] ** 2 * errors[0])


def test_each_noise_level_has_its_own_weights():
    weights = inverse_error_weights(np.array([[1.0, 1.0], [1.0, 9.0]]))
    assert np.allclose(weights, [[0.5, 0.5], [0.75, 0.25]])


def test_no_support_holds_an_image_left_out(store, queries):
    rows = np.arange(0, 200, 3)
    schedule = LeavingOut(PaperSchedule(variant="released"), rows)
    x = queries(store, 1.0).flatten(1).numpy()
    supports = schedule.supports(store, x, 1.0, None, 0)
    assert all(len(s) > 0 and not np.isin(s.rows, rows).any() for s in supports)
    whole = LeavingOut(PaperSchedule(variant="released"), np.arange(200))
    assert all(len(s) > 0 for s in whole.supports(store, x, 1.0, None, 0))
    assert whole.budgets(1.0, 200) == PaperSchedule(variant="released").budgets(1.0, 200)


def test_the_error_is_the_mean_squared_one(store):
    rows = np.arange(10)
    wiener = Wiener(store)
    ((error,),) = denoising_errors([wiener], rows, (0.5,), seed=3)
    noise = np.random.default_rng(3).standard_normal((10, 36), np.float32)
    truth = store.images(rows)
    x = truth + 0.5 * torch.from_numpy(noise).reshape(truth.shape)
    assert error == pytest.approx(float((wiener(x, 0.5).clamp(-1, 1) - truth).square().mean()))


def test_the_seed_decides(store):
    rows = np.arange(10)
    first, second, third = (
        denoising_errors([Wiener(store)], rows, (0.5,), seed).item() for seed in (0, 0, 1)
    )
    assert first == second != third


def test_no_error_is_no_reason_to_divide_by_zero(make_store):
    store = make_store(torch.full((30, 1, 3, 3), 9, dtype=torch.uint8))
    errors = denoising_errors([Wiener(store), Wiener(store)], np.arange(3), (0.5, 1.0))
    assert np.allclose(inverse_error_weights(errors), 0.5)


def test_the_images_left_out_are_few_and_always_the_same():
    assert len(left_out(19)) == 0
    assert len(left_out(20)) == 2
    assert len(left_out(50_000)) == 32
    assert (left_out(1000) == left_out(1000)).all()
    assert len(set(left_out(25).tolist())) == 2


def test_a_set_with_its_mirror_images_is_symmetric_and_one_lit_from_the_left_is_not(
    make_store, smooth_images
):
    images = smooth_images(400, (1, 6, 6)).float()
    images[..., 3:] *= 0.3
    mirrored = images.clone()
    mirrored[::2] = images[::2].flip(-1)
    rows = np.arange(0, 400, 20)
    for shown, expected in ((images, False), (mirrored, True)):
        store = make_store(shown.to(torch.uint8))
        seen = np.setdiff1d(np.arange(400), rows)
        mixture = GaussianMixture(store, components=3, rows=seen)
        assert is_symmetric(mixture, rows, (0.1, 0.5, 2.0)) is expected


def test_points_have_no_mirror_image(make_store):
    assert not is_symmetric(Wiener(make_store("moons")), np.arange(5), (1.0,))
