"""The log density and its derivatives equal float64 references written from the equations."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.system.errors import ArgumentError
from tests.conftest import float64_images
from tests.exact.test_posterior import flat, optimal


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(70, (2, 5, 5)), torch.arange(70) % 3)


def test_the_score_is_the_gradient_of_the_log_density(store, queries):
    sigma = torch.tensor([0.3, 0.7, 2.0, 9.0])
    x, d, step = queries(store, 1.0), golddiff.Optimal(store), 1e-3
    images, x64 = torch.from_numpy(float64_images(store)), x.double().reshape(4, -1)
    x64.requires_grad_()
    squares = (x64[:, None] - images).square().sum(dim=2)
    logs = torch.logsumexp(-squares / (2 * sigma.double()[:, None] ** 2), dim=1)
    (gradient,) = torch.autograd.grad(logs.sum(), x64)
    assert np.allclose(flat(d.score(x, sigma)), gradient.numpy(), atol=1e-4, rtol=1e-5)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(1))
    moved = [d.log_density(x + s * direction, sigma) for s in (step, -step)]
    slope = (d.score(x, sigma).double() * direction).reshape(4, -1).sum(dim=1)
    assert torch.allclose((moved[0] - moved[1]) / (2 * step), slope, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_log_density_is_differentiable_in_x_and_sigma(store, queries, dtype):
    sigma = torch.tensor([0.3, 0.7, 2.0, 9.0], dtype=dtype).requires_grad_()
    x = queries(store, 1.0).to(dtype).requires_grad_()
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5]).double()
    d = golddiff.Optimal(store)
    density = d.log_density(x, sigma)
    assert torch.equal(density, d.posterior(x, sigma).log_density)
    (density * weights).sum().backward()
    images = torch.from_numpy(float64_images(store))
    x64 = x.detach().double().reshape(4, -1).requires_grad_()
    level = sigma.detach().double().requires_grad_()
    squares = (x64[:, None] - images).square().sum(dim=2)
    logs = torch.logsumexp(-squares / (2 * level[:, None] ** 2), dim=1) - store.d * level.log()
    (logs * weights).sum().backward()
    assert np.allclose(flat(x.grad), x64.grad, atol=1e-4, rtol=1e-5)
    assert torch.allclose(sigma.grad.double(), level.grad, rtol=1e-4)
    assert (x.grad.dtype, sigma.grad.dtype) == (dtype, dtype)


def test_torchs_default_device_has_no_effect_on_the_gradient(store, queries):
    x, gradients = queries(store, 1.0).requires_grad_(), []
    for device in ("cpu", "meta"):
        with torch.device(device):
            density = golddiff.Optimal(store).log_density(x, 0.7).sum()
            gradients += torch.autograd.grad(density, x)
    assert torch.equal(*gradients)


def test_arguments_of_the_log_density_changed_in_place_are_refused_by_backward(store, queries):
    """Regression: gradients were of the changed values."""
    d, x, sigma = golddiff.Optimal(store), queries(store, 1.0).requires_grad_(), torch.tensor(1.0)
    moved = x * 1
    for arguments, changed in (((moved, 1.0), moved), ((x, sigma), sigma)):
        density = d.log_density(*arguments).sum()
        with torch.no_grad():
            changed += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            density.backward()


def test_the_log_density_of_an_empty_batch_has_a_gradient(store):
    sigma = torch.tensor(1.0, requires_grad=True)
    golddiff.Optimal(store).log_density(store.images([]), sigma).sum().backward()
    assert sigma.grad == 0


def test_the_second_derivative_of_the_log_density_is_exact(store, queries):
    """The Hessian is (C / sigma^2 - I) / sigma^2, with the posterior covariance C."""
    x, sigma, d = queries(store, 1.0).requires_grad_(), 1.3, golddiff.Optimal(store)
    (slope,) = torch.autograd.grad(d.log_density(x, sigma).sum(), x, create_graph=True)
    direction = torch.randn(x.shape, generator=torch.Generator().manual_seed(2))
    (product,) = torch.autograd.grad((slope * direction).sum(), x)

    def total(v):
        return d.log_density(v, sigma).sum()

    _, by_vhp = torch.autograd.functional.vhp(total, x, direction)
    assert torch.allclose(by_vhp, product, atol=1e-5)
    with pytest.raises(ArgumentError, match=r"got .* hvp, expected .* vhp"):
        torch.autograd.functional.hvp(total, x, direction)
    _, covariance, _ = optimal(store, x.detach(), sigma, 0.0)
    hessian = (covariance / sigma**2 - np.eye(store.d)) / sigma**2
    expected = np.einsum("bij,bj->bi", hessian, flat(direction))
    assert np.allclose(flat(product), expected, atol=1e-5)


def test_derivatives_of_the_log_density_that_are_not_exact_are_refused(store, queries):
    x, wiener = queries(store, 1.0).requires_grad_(), golddiff.Wiener(store)
    sigma = torch.tensor(1.0).requires_grad_()
    with pytest.raises(ArgumentError, match="log_density: got second derivatives where sigma"):
        torch.autograd.grad(wiener.log_density(x, sigma).sum(), x, create_graph=True)
    with pytest.raises(ArgumentError, match=r"x: got a tensor of torch\.func"):
        torch.func.grad(lambda v: wiener.log_density(v, 1.0).sum())(x.detach())


@pytest.mark.parametrize("sigma", [1e-9, 1e-8])
def test_the_log_density_of_one_image_is_that_of_a_gaussian(make_store, sigma):
    store = make_store(torch.zeros(1, 2, 10, 10))
    x = (sigma * torch.randn(3, 2, 10, 10, generator=torch.Generator().manual_seed(0))).float()
    normal = torch.distributions.Normal(0.0, torch.tensor(sigma, dtype=torch.float64))
    expected = normal.log_prob(x.double()).flatten(1).sum(dim=1)
    assert torch.allclose(golddiff.Optimal(store).log_density(x, sigma), expected, rtol=1e-6)
