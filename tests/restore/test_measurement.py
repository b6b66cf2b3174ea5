"""Operators as matrices, estimates put back onto a measurement, and the expected picture."""

import numpy as np
import pytest
import torch

from golddiff.estimators import measurement, operators
from golddiff.estimators.measurement import expected, linear, measurements, pictures_of
from tests.restore.operators_for_tests import KNOWN, OPERATORS, SHAPE, operator_matrix


def test_rounding_of_a_fourier_transform_leaves_an_operator_sparse():
    kernel = torch.zeros(16, 16)
    kernel[:3, :3] = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))

    def blur(x):
        return torch.fft.irfft2(torch.fft.rfft2(x) * torch.fft.rfft2(kernel), s=(16, 16))

    assert linear(blur, (1, 16, 16), (1, 16, 16)).matrix.nnz == 9 * 256


def test_rows_of_different_scale_and_a_large_constant_are_kept(other):
    def measure(x):
        total = x.flatten(1).sum(dim=1, keepdim=True)
        return torch.cat([1e3 * total, 1e-4 * x[:, 0, 0, :4].mean(1, True)], dim=1)

    assert len(linear(measure, SHAPE, (2,)).active) == 2
    assert len(linear(lambda x: 1e-3 * x + 100, SHAPE, SHAPE).active) == 192


def test_a_physics_in_a_composition_is_used_without_its_noise(other):
    class Noisy:
        A = staticmethod(OPERATORS["smaller"])

        def __call__(self, x):
            raise AssertionError("adds noise")

    both = operators.composed(operators.grey, Noisy())
    assert torch.equal(both(other), OPERATORS["smaller"](operators.grey(other)))


def test_smooth_projection_also_corrects_the_hole():
    """Correcting known pixels that are too dark also brightens the unknown ones."""
    y = torch.full((1, 3, int(KNOWN.sum())), 0.5)
    measurement = measurements(OPERATORS["hole"], y, SHAPE, 0.0, 0.1)[0]
    dark = np.full((1, 192), -0.2, np.float32)
    smooth, plain = (
        torch.from_numpy(project(dark)).reshape(SHAPE)
        for project in (measurement.project_smoothly, measurement.project)
    )
    for projected in (smooth, plain):
        torch.testing.assert_close(projected[:, KNOWN], y[0].double(), rtol=0, atol=1e-6)
    assert (plain[:, ~KNOWN] + 0.2).abs().max() < 1e-6
    assert smooth[:, ~KNOWN].min() > 0.1


@pytest.mark.parametrize("name", OPERATORS)
def test_an_estimate_moves_just_as_far_as_the_noise_explains(other, name):
    y, noise = OPERATORS[name](other[:1]), 0.05
    measured = measurements(OPERATORS[name], y, SHAPE, noise, 0.1)[0]
    for start, expected_rms in ((other[1:2], noise), (other[:1] + 0.01, 0.01)):
        moved = torch.from_numpy(measured.project(start.reshape(1, -1).numpy()))
        rms = (OPERATORS[name](moved.reshape(1, *SHAPE).float()) - y).square().mean().sqrt()
        assert float(rms) == pytest.approx(expected_rms, rel=0.01)


@pytest.mark.parametrize("name", ["hole", "smaller", "both"])
def test_expected_is_the_posterior_mean_under_a_gaussian_fit(store, other, name):
    """Against the equation in pixel space, with the mean and covariance of all images."""
    noise, a = 0.5, operator_matrix(OPERATORS[name])
    images = store.images(range(store.n)).reshape(store.n, -1).double().numpy()
    m, c = images.mean(axis=0), np.cov(images.T, bias=True)
    gain = c @ a.T @ np.linalg.inv(a @ c @ a.T + noise**2 * np.eye(len(a)))
    residual = (other.reshape(len(other), -1).double().numpy() - m) @ a.T
    picture = expected(store, OPERATORS[name], OPERATORS[name](other), noise)
    assert picture.reshape(len(other), -1).numpy() == pytest.approx(
        (m + residual @ gain.T).clip(-1, 1), abs=1e-5
    )
    y, operator = OPERATORS[name](other), OPERATORS[name]
    assert torch.equal(expected(store, operator, y), expected(store.path, operator, y, 0.2))


def test_expected_accepts_one_number_per_image(store, other):
    def brightness(images):
        return images.mean(dim=(1, 2, 3))

    assert expected(store, brightness, brightness(other)).shape == other.shape


def test_expected_uses_the_images_that_fit_y_best_and_the_first_of_equal_ones(
    make_store, other, monkeypatch
):
    monkeypatch.setattr(measurement, "NEARBY", 5)
    images = torch.rand(200, *SHAPE, generator=torch.Generator().manual_seed(0)) - 0.5
    images[150:, :, KNOWN] = other[0][:, KNOWN]
    stores, y = (make_store(images), make_store(images[150:155])), OPERATORS["hole"](other[:1])
    assert torch.equal(*(expected(store, OPERATORS["hole"], y) for store in stores))


def test_mean_and_spread_are_shown_only_if_restorations_differ(other):
    known = other[0] * KNOWN
    shown = pictures_of(other[:2], known)
    assert list(shown) == [
        "known", "restoration 1", "restoration 2", "their mean", "where they differ"
    ]  # fmt: skip
    assert torch.equal(shown["known"], known)
    assert torch.equal(shown["their mean"], other[:2].mean(dim=0))
    spread = (other[0] - other[1]).abs().mean(dim=0) / 2
    expected = (4 * spread - 1).clamp(max=1).expand(SHAPE)
    torch.testing.assert_close(shown["where they differ"], expected)
    assert list(pictures_of(other[[0, 0]], known)) == [
        "known", "restoration 1", "restoration 2"
    ]  # fmt: skip
