"""What a posterior knows, and what it is given, is the single store's over two shards."""

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
    made = np.random.default_rng(0).normal(0, 2, digits.n)
    made[::5] = -np.inf
    return made


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
def test_given_and_derived_as_by_one_store(two, digits, x, weights, method):
    one, many = (METHODS[method](store).given(weights) for store in (digits, two))
    assert torch.allclose(one(x, SIGMA), many(x, SIGMA), atol=1e-5)
    found, parts = one.posterior(x, SIGMA), many.posterior(x, SIGMA)
    assert torch.allclose(found.variance, parts.variance, atol=1e-6)
    gradients = []
    for d in (one, many):
        asked = x.clone().requires_grad_()
        d(asked, SIGMA).square().sum().backward()
        gradients.append(asked.grad)
    assert torch.allclose(*gradients, atol=1e-5)


def test_draws_directions_and_density_as_by_one_store(two, digits, x, weights):
    for given in (np.zeros(digits.n), weights):
        found, parts = (
            golddiff.Optimal(store).given(given).posterior(x, SIGMA) for store in (digits, two)
        )
        assert torch.equal(found.draw(20, seed=3), parts.draw(20, seed=3))
        assert torch.allclose(found.log_density, parts.log_density, rtol=1e-9)
        for a, b in zip(found.directions(2), parts.directions(2), strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_a_measurement_weighs_a_store_in_shards(two, digits):
    y = digits.images([3, 4])[:, :, :4]
    logs = [golddiff.log_likelihood(s, lambda v: v[:, :, :4], y, 0.2) for s in (digits, two)]
    assert torch.equal(*logs)
