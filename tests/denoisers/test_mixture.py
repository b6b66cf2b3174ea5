"""The Gaussian mixture is an exact posterior mean at every noise level."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from threadpoolctl import threadpool_limits

from golddiff import GaussianMixture, Wiener
from golddiff.estimators.mixture import fit, posterior_mean
from reliability import reference
from reliability.numbers.paths import full_covariances

SIGMAS = (0.01, 0.3, 1.0, 6.0, 157.0)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(600, (1, 5, 4)), torch.arange(600) % 3)


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("rank", [300, 7])
def test_it_is_the_posterior_mean_under_its_full_covariances(store, queries, sigma, rank):
    mixture = GaussianMixture(store, components=5, rank=rank, shrinkage=20)
    means, covariances = full_covariances(mixture)
    weights = np.exp(mixture.fitted().log_weights)
    assert len(weights) == 5
    assert weights.sum() == pytest.approx(1)
    x = queries(store, sigma)
    got = mixture(x, sigma).flatten(1).numpy()
    for query, answer in zip(x.flatten(1).double().numpy(), got, strict=True):
        direct = reference.gaussian_mixture(query, sigma, weights, means, covariances)
        assert np.abs(answer - direct).max() < 1e-4


@given(st.integers(1, 4), st.integers(1, 3), st.floats(0.01, 157), st.integers(0, 1000))
def test_posterior_mean_of_any_number_of_components_at_any_sigma(k, r, sigma, seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(40, r)).astype(np.float32) * 2
    mixture = fit(z, np.arange(40) % k, shrinkage=1.0)
    covariances = np.array(
        [
            a.astype(np.float64) * v @ a.T
            for a, v in zip(mixture.axes, mixture.variances, strict=True)
        ]
    )
    x = rng.normal(size=(3, r)) * (1 + sigma)
    for query, answer in zip(x, posterior_mean(mixture, x, sigma), strict=True):
        direct = reference.gaussian_mixture(
            query, sigma, np.exp(mixture.log_weights), mixture.means, covariances
        )
        assert np.allclose(answer, direct, atol=1e-4 * (1 + np.abs(direct).max()))


def test_without_shrinkage_components_have_the_cluster_covariances():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(200, 3)).astype(np.float32)
    member = np.arange(200) % 4
    mixture = fit(z, member, shrinkage=0.0)
    for c in range(4):
        within = mixture.axes[c] * mixture.variances[c] @ mixture.axes[c].T
        assert np.allclose(within, np.cov(z[member == c].T), atol=1e-5)
    assert np.allclose(np.exp(mixture.log_weights) @ mixture.means, z.mean(axis=0), atol=1e-6)


def test_with_strong_shrinkage_all_components_have_the_pooled_covariance():
    rng = np.random.default_rng(0)
    z, member = rng.normal(size=(40, 3)).astype(np.float32), np.arange(40) % 4
    mixture = fit(z, member, shrinkage=1e9)
    within = [a * v @ a.T for a, v in zip(mixture.axes, mixture.variances, strict=True)]
    pooled = sum(9 * np.cov(z[member == c].T) for c in range(4)) / 36
    assert np.allclose(within, pooled, atol=1e-5)


@pytest.mark.parametrize("sigma", SIGMAS)
def test_one_component_is_wiener(store, queries, sigma):
    x = queries(store, sigma)
    one = GaussianMixture(store, components=1, shrinkage=0)
    assert (one(x, sigma) - Wiener(store)(x, sigma)).abs().max() < 1e-4


def test_low_noise_returns_the_input_and_high_noise_the_mean(store, queries):
    mixture = GaussianMixture(store)
    x = queries(store, 1e-3)
    assert (mixture(x, 1e-3) - x).abs().max() < 0.01
    far = mixture(queries(store, 1e4), 1e4)
    assert (far - store.images().mean(0)).abs().max() < 0.01


def test_clusters_of_fewer_images_than_dimensions_are_denoised_at_low_noise():
    """Rounding makes variances of directions without images slightly negative."""
    z = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    mixture = fit(z, np.append(np.arange(39) % 3, 3), shrinkage=0.0)  # the last of a single image
    out = posterior_mean(mixture, z.astype(np.float64), 1e-5)
    assert np.abs(out - z).max() < 1e-4


def test_the_same_seed_gives_the_same_mixture(store, queries):
    x = queries(store, 0.5)
    first, second = (GaussianMixture(store, seed=2**64 - 1)(x, 0.5) for _ in range(2))
    assert torch.equal(first, second)


def test_the_mixture_of_a_class_has_its_mean(make_store, queries):
    rng = np.random.default_rng(0)
    labels = torch.arange(400) % 2
    pixels = 60 + 130 * labels.numpy()[:, None, None, None] + rng.integers(0, 20, (400, 1, 4, 4))
    store = make_store(pixels.astype(np.uint8), labels)
    far = torch.zeros(1, 1, 4, 4)
    mixture = GaussianMixture(store)
    for label in (0, 1):
        expected = store.images(torch.nonzero(labels == label).flatten()).mean(0)
        assert (mixture(far, 1e3, labels=label) - expected).abs().max() < 0.01


@pytest.mark.parametrize("shape", [(2,), (1, 1, 1), (3, 4, 4)])
def test_a_single_image_is_the_output(make_store, shape):
    only = 2 * torch.rand((1, *shape), generator=torch.Generator().manual_seed(0)) - 1
    only[0, ..., :1] = -0.5  # a value below 0 fixes the range [-1, 1]
    mixture = GaussianMixture(make_store(only))
    assert torch.allclose(mixture(torch.randn(3, *shape), 0.5), only.expand(3, *shape))


def test_on_two_moons_it_beats_wiener(make_store):
    store = make_store("moons")
    points = store.images(slice(0, 400))
    x = points + 0.1 * torch.randn(400, 2, generator=torch.Generator().manual_seed(0))
    mixture, wiener = (
        (denoiser(x, 0.1) - points).square().mean()
        for denoiser in (GaussianMixture(store), Wiener(store))
    )
    assert mixture < 0.8 * wiener


def test_clusters_do_not_depend_on_the_number_of_threads(make_store):
    """Pictures of two values, mirrored and copied, lie at equal distances from two means."""
    one = np.random.default_rng(0).integers(0, 2, (200, 1, 8, 8), dtype=np.uint8) * 255
    store = make_store(np.concatenate([one, one[..., ::-1], one[:, :, ::-1], one[:100]]))
    store.factor()
    fitted = []
    for threads in (1, 2):
        with threadpool_limits(threads, user_api="blas"):
            fitted.append(GaussianMixture(store).fitted())
    assert np.array_equal(*(mixture.means for mixture in fitted))
