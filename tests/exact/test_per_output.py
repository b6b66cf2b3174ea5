"""Posteriors of PCA and Kamb, with weights for each output, equal float64 references."""

import numpy as np
import pytest
import torch

import golddiff
from reliability.reference import compared, framed_by, pca_mask
from tests.conftest import float64_images
from tests.exact.test_posterior import flat


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(70, (2, 5, 5)))


def kamb_terms(x, sigma, images, patch, boundary):
    """Yield (row, column, logits, values) of every position; logits are (image, logit) pairs."""
    _, height, width = x.shape
    query = framed_by(patch // 2, x, boundary)
    framed = [framed_by(patch // 2, image, boundary) for image in images]
    for row in range(height):
        for column in range(width):
            own = query[:, row : row + patch, column : column + patch]
            logits, values = [], []
            for i, frame in enumerate(framed):
                for r in compared(row, height, patch, boundary):
                    for c in compared(column, width, patch, boundary):
                        patch_i = frame[:, r : r + patch, c : c + patch]
                        logits.append((i, -np.sum((own - patch_i) ** 2) / (2 * sigma**2)))
                        values.append(images[i][:, r, c])
            yield row, column, logits, np.array(values)


def kamb(x, sigma, images, patch, boundary, prior):
    """Mean and variance of one query (C, H, W)."""
    mean, variance = np.empty_like(x), np.empty_like(x)
    for row, column, logits, values in kamb_terms(x, sigma, images, patch, boundary):
        logs = np.array([prior[i] + logit for i, logit in logits])
        weights = np.exp(logs - np.logaddexp.reduce(logs))
        mean[:, row, column] = weights @ values
        variance[:, row, column] = weights @ (values - weights @ values) ** 2
    return mean, variance


def pca(x, sigma, images, mask, prior):
    logs = -((x - images) ** 2) @ mask / (2 * sigma**2) + prior[:, None]
    weights = np.exp(logs - np.logaddexp.reduce(logs, axis=0))
    mean = (weights * images).sum(axis=0)
    return mean, (weights * (images - mean) ** 2).sum(axis=0)


def slope_of(mean_of, x, u, places, step=1e-5):
    """The gradient of mean . u at some places of x, by differences of a float64 reference."""
    slopes = []
    for place in places:
        moved = [x.copy(), x.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        slopes.append(((mean_of(moved[0]) - mean_of(moved[1])) * u).sum() / (2 * step))
    return np.array(slopes)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 3.0, 30.0])
def test_pca_posterior_and_gradient_per_output(store, queries, sigma):
    prior = np.random.default_rng(0).normal(size=store.n)
    prior[5] = -np.inf
    d = golddiff.PCA(store, 0.3).given(prior)
    images, x = float64_images(store), queries(store, sigma, b=2)
    mask = pca_mask(sigma, images, 0.3)
    posterior = d.posterior(x, sigma)
    x.requires_grad_()
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    (d(x, sigma) * u).sum().backward()
    for q in range(2):
        query = flat(x.detach())[q]
        mean, variance = pca(query, sigma, images, mask, prior)
        assert np.abs(flat(posterior.mean)[q] - mean).max() < 1e-5
        assert np.abs(flat(posterior.variance)[q] - variance).max() < 1e-5
        every = list(np.ndindex(query.shape))
        slope = slope_of(lambda v: pca(v, sigma, images, mask, prior)[0], query, flat(u)[q], every)
        assert np.abs(flat(x.grad)[q] - slope).max() < 1e-4 * max(1, np.abs(slope).max())


@pytest.mark.parametrize("boundary", ["none", "circular", "zeros"])
@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_kamb_posterior_and_gradient_per_pixel(make_store, smooth_images, queries, sigma, boundary):
    store = make_store(smooth_images(9, (2, 5, 5), seed=4))
    prior = np.random.default_rng(0).normal(size=store.n)
    d = golddiff.Kamb(store, 3, boundary).given(prior)
    images = float64_images(store).reshape(-1, *store.shape)
    x = queries(store, sigma, b=1)
    posterior = d.posterior(x, sigma)
    query = x[0].double().numpy()
    mean, variance = kamb(query, sigma, images, 3, boundary, prior)
    assert np.abs(posterior.mean[0].numpy() - mean).max() < 1e-5
    assert np.abs(posterior.variance[0].numpy() - variance).max() < 1e-5
    x.requires_grad_()
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    (d(x, sigma) * u).sum().backward()
    places = [(0, 0, 0), (1, 0, 3), (0, 1, 1), (1, 2, 2), (0, 4, 2), (1, 4, 4)]
    slope = slope_of(
        lambda v: kamb(v, sigma, images, 3, boundary, prior)[0], query, u[0].double().numpy(),
        places,
    )  # fmt: skip
    gradient = np.array([x.grad[0].numpy()[place] for place in places])
    assert np.abs(gradient - slope).max() < 1e-4 * max(1, np.abs(slope).max())


@pytest.mark.parametrize("share", ["pixel", "2x2", "seamless"])
def test_the_gradient_of_a_shared_softmax_equals_finite_differences(store, queries, share):
    d, x = golddiff.PCA(store, 0.3, share=share), queries(store, 0.8, b=2).double()
    x.requires_grad_()
    generator = torch.Generator().manual_seed(3)
    u, v = (torch.randn(x.shape, generator=generator) for _ in range(2))
    (d(x, 0.8) * u).sum().backward()
    with torch.no_grad():
        moved = [(d.posterior(x + s * v, 0.8).mean.double() * u).sum() for s in (1e-2, -1e-2)]
    assert float((x.grad * v).sum()) == pytest.approx(float(moved[0] - moved[1]) / 2e-2, rel=1e-2)
