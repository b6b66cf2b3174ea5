"""Variances and gradients of PCA and Kamb in float32 equal those of float64 equations."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.store.exact import ImagesPosterior
from golddiff.support import Support, TiledSupport

pytestmark = pytest.mark.kernels


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(300, (3, 16, 16), seed=2))  # more than one part


def both(monkeypatch, make):
    """``make()`` in float32, then by the float64 equations."""
    fast = make()
    monkeypatch.setattr("golddiff.store.exact.TOL", -1.0)
    return zip(fast, make(), strict=True)


def moments_of(denoiser, x, sigma):
    """Mean, variance, and gradients in x and sigma of a fixed cotangent."""
    posterior = denoiser.posterior(x, sigma)
    query = x.clone().requires_grad_()
    level = torch.full((len(x),), sigma, dtype=torch.float64, requires_grad=True)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(3))
    (denoiser(query, level) * u).sum().backward()
    return posterior.mean, posterior.variance, query.grad, level.grad


@pytest.mark.parametrize("sigma", [0.05, 0.8, 40.0])
@pytest.mark.parametrize(
    ("share", "golden"),
    [(None, True), *((share, False) for share in (None, "pixel", "2x2", "4x4", "seamless"))],
)
def test_moments_equal_those_in_float64(store, queries, sigma, share, golden, monkeypatch):
    d, x = golddiff.PCA(store, 0.1, share=share), queries(store, sigma, b=2)
    d = golddiff.GoldDiff(d, golddiff.PaperSchedule()) if golden else d
    for a, b in both(monkeypatch, lambda: moments_of(d, x, sigma)):
        assert (a - b).abs().max() <= 1e-4 * max(0.1, float(b.abs().max()))


@pytest.mark.parametrize("sigma", [0.1, 20.0])
@pytest.mark.parametrize("boundary", ["none", "circular", "zeros"])
@pytest.mark.parametrize("shape", [(1, 9, 7), (2, 6, 8)])
def test_moments_of_patches_equal_those_in_float64(
    make_store, smooth_images, queries, shape, boundary, sigma, monkeypatch
):
    store = make_store(smooth_images(70, shape, seed=2))  # more than one part
    weights = np.random.default_rng(0).normal(-10, 1, store.n)
    d, x = golddiff.Kamb(store, 3, boundary).given(weights), queries(store, sigma, b=2)
    for a, b in both(monkeypatch, lambda: moments_of(d, x, sigma)):
        assert (a - b).abs().max() <= 1e-4 * max(0.1, float(b.abs().max()))


@pytest.mark.parametrize("spread", [1, 1000])
@pytest.mark.parametrize("share", [None, "seamless"])
def test_the_gradient_in_sigma_is_accurate_with_log_weights(
    store, queries, spread, share, monkeypatch
):
    """Its terms are rounded to float32; a log weight common to all images must not amplify that."""
    weights = np.random.default_rng(0).normal(-spread, 1, store.n)
    d, x = golddiff.PCA(store, 0.1, share=share).given(weights), queries(store, 2.0, b=2)
    for a, b in both(monkeypatch, lambda: moments_of(d, x, 2.0)):
        assert (a - b).abs().max() <= 1e-3 * max(0.1, float(b.abs().max()))


@pytest.mark.parametrize("sigma", [0.3, 3.0])
def test_moments_of_tiles_equal_those_in_float64(store, queries, sigma, monkeypatch):
    d, x = golddiff.PCA(store, 0.1), queries(store, sigma, b=2)
    generator = np.random.default_rng(1)
    tiles = [
        Support(np.sort(generator.choice(store.n, 200, False)), generator.normal(size=200))
        for _ in range(4)
    ]
    flat = x.reshape(2, -1).numpy()
    u = generator.normal(size=flat.shape)

    def moments():
        posterior = ImagesPosterior(d, flat, sigma, TiledSupport(8, tiles), 0.0)
        return posterior.mean(), posterior.variance(), *posterior.pull(u)

    for a, b in both(monkeypatch, moments):
        assert np.abs(a - b).max() <= 1e-4 * max(0.1, np.abs(b).max())


def test_only_queries_that_float32_cannot_resolve_are_computed_in_float64(store, queries):
    """A query far from all images: the two nearest differ by less than float32's rounding."""
    d, x = golddiff.PCA(store, 0.1), queries(store, 0.01, b=3)
    x[1] = 40.0 * torch.randn(store.shape, generator=torch.Generator().manual_seed(0))
    posterior = ImagesPosterior(d, x.reshape(3, -1).numpy(), 0.01, store.everything(None), 0.0)
    posterior.variance()
    assert posterior._uncertain == [1]
