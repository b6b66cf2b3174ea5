"""Posteriors, log weights and gradients over two shards equal those of the single store."""

import numpy as np
import pytest
import torch

import golddiff

SIGMA = 1.5


@pytest.fixture(scope="module")
def x(digits):
    noise = torch.randn(3, *digits.shape, generator=torch.Generator().manual_seed(0))
    return digits.images([5, 700, 1500]) + SIGMA * noise


@pytest.fixture(scope="module")
def weights(digits):
    log_weights = np.random.default_rng(0).normal(0, 2, digits.n)
    log_weights[::5] = -np.inf
    return log_weights


METHODS = {
    "optimal": golddiff.Optimal,
    "pca": golddiff.PCA,
    "kamb": lambda store: golddiff.Kamb(store, 3, boundary="none"),
    "golden": lambda store: golddiff.GoldDiff(golddiff.PCA(store)),
    "released": lambda store: golddiff.GoldDiff(
        golddiff.Optimal(store), golddiff.PaperSchedule(variant="released")
    ),
    "adaptive": lambda store: golddiff.GoldDiff(
        golddiff.Optimal(store), golddiff.AdaptiveSchedule(0)
    ),
}


@pytest.mark.parametrize("method", METHODS)
def test_means_variances_and_gradients_with_log_weights(split_digits, digits, x, weights, method):
    whole, split = (METHODS[method](store).given(weights) for store in (digits, split_digits))
    assert torch.allclose(whole(x, SIGMA), split(x, SIGMA), atol=1e-5)
    expected, found = whole.posterior(x, SIGMA), split.posterior(x, SIGMA)
    assert torch.allclose(expected.variance, found.variance, atol=1e-6)
    gradients = []
    for denoiser in (whole, split):
        query = x.clone().requires_grad_()
        denoiser(query, SIGMA).square().sum().backward()
        gradients.append(query.grad)
    assert torch.allclose(*gradients, atol=1e-5)


def test_log_weights_of_each_query(split_digits, digits, x):
    weights = np.random.default_rng(0).normal(0, 2, (len(x), digits.n))
    whole, split = (golddiff.Optimal(store).given(weights) for store in (digits, split_digits))
    assert torch.allclose(whole(x, SIGMA), split(x, SIGMA), atol=1e-6)


def test_draws_directions_and_log_density(split_digits, digits, x, weights):
    for log_weights in (np.zeros(digits.n), weights):
        expected, found = (
            golddiff.Optimal(store).given(log_weights).posterior(x, SIGMA)
            for store in (digits, split_digits)
        )
        assert torch.equal(expected.draw(20, seed=3), found.draw(20, seed=3))
        assert torch.allclose(expected.log_density, found.log_density, rtol=1e-9)
        for a, b in zip(expected.directions(2), found.directions(2), strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_the_log_likelihood_of_a_measurement(split_digits, digits):
    y = digits.images([3, 4])[:, :, :4]
    stores = digits, split_digits
    assert torch.equal(*(golddiff.log_likelihood(s, lambda v: v[:, :, :4], y, 0.2) for s in stores))
