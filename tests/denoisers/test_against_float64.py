"""Every denoiser equals its equation, evaluated directly in float64."""

import numpy as np
import pytest
import torch

from golddiff import PCA, SCFDM, GoldDiff, NearestImage, Optimal, PaperSchedule, Wiener
from golddiff.estimators.masks import locality_mask
from golddiff.kernels.stored import Stored
from golddiff.store.statistics import covariance_factor
from golddiff.support import LogWeights
from reliability import reference
from tests.conftest import float64_images

SIGMAS = [0.01, 0.05, 0.3, 1.0, 3.0, 12.0, 80.0]


@pytest.fixture(scope="module", params=["uint8 colour", "float32 latents", "odd grey", "points"])
def store(request, make_store, smooth_images):
    if request.param == "uint8 colour":
        return make_store(smooth_images(200, (3, 8, 8)))
    if request.param == "float32 latents":
        return make_store(torch.randn(150, 4, 4, 4, generator=torch.Generator().manual_seed(2)))
    if request.param == "odd grey":
        return make_store(smooth_images(70, (1, 7, 9)))
    return make_store(torch.randn(500, 2, generator=torch.Generator().manual_seed(3)))


def gap(store, denoiser, x, sigma, direct):
    actual = denoiser(x, sigma).double().numpy().reshape(len(x), -1)
    expected = np.stack([direct(q) for q in x.double().numpy().reshape(len(x), -1)])
    return np.abs(actual - expected).max()


@pytest.mark.parametrize("fifths", [1, 2, 3])
def test_masks_hold_their_own_value_and_entries_equal_to_the_threshold(fifths):
    for seed in range(20):
        u = np.random.default_rng(seed).integers(1, 9, 12)  # of images 0 and u: M_nq = u_q / u_n
        factor = covariance_factor(Stored(np.stack([0 * u, u]).astype(np.float32)))
        reaches = 5 * u * u.min() >= fifths * u[:, None] * u.max()
        expected = reaches | np.eye(12, dtype=bool)
        assert np.array_equal(locality_mask(factor, 0.1, fifths / 5), expected)


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_optimal_is_equation_2(store, queries, sigma):
    images = float64_images(store)
    x = queries(store, sigma)
    error = gap(store, Optimal(store), x, sigma, lambda q: reference.optimal(q, sigma, images))
    assert error < 1e-5


@pytest.fixture(scope="module")
def photographs(make_store, smooth_images):
    return make_store(smooth_images(500, (1, 28, 28)))


@pytest.mark.kernels
@pytest.mark.parametrize(("sigma", "lengths"), [(100.0, 5), (100.0, 10), (1e4, 5)])
def test_optimal_is_exact_far_from_many_images_of_similar_weights(photographs, sigma, lengths):
    """Regression: no single weight mattered enough to be computed again, but all together did."""
    store, images = photographs, float64_images(photographs)
    x = lengths * sigma * torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    error = gap(store, Optimal(store), x, sigma, lambda q: reference.optimal(q, sigma, images))
    assert error < 5e-6


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_scfdm_is_the_mean_of_optimal_at_noisy_copies(store, queries, sigma):
    images, denoiser = float64_images(store), SCFDM(store, 0.4, copies=5, seed=2)
    noise = denoiser.noise(sigma) * 0.4 * np.sqrt(1 + sigma**2)
    assert np.abs(noise - SCFDM(store, 0.4, copies=5).noise(sigma)).max() > 0.1

    def direct(q):
        copies = denoiser.noisy(q[None].astype(np.float32), sigma).astype(np.float64)
        assert np.abs(copies - (q + noise)).max() < 1e-6 * (1 + np.abs(copies).max())
        return np.mean([reference.optimal(copy, sigma, images) for copy in copies], axis=0)

    assert gap(store, denoiser, queries(store, sigma), sigma, direct) < 1e-5


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_nearest_image_is_nearest_to_the_query_over_sqrt_1_plus_sigma2(store, queries, sigma):
    images = float64_images(store)

    def direct(q):
        return images[np.square(q / np.sqrt(1 + sigma**2) - images).sum(1).argmin()]

    assert gap(store, NearestImage(store), queries(store, sigma, 16), sigma, direct) < 1e-6


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_wiener_is_the_gaussian_posterior_mean(store, queries, sigma):
    images = float64_images(store)
    x = queries(store, sigma)
    error = gap(store, Wiener(store), x, sigma, lambda q: reference.wiener(q, sigma, images))
    assert error < 1e-4


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("threshold", [0.0, 0.02, 0.3])
def test_pca_is_the_masked_posterior_mean(store, queries, sigma, threshold):
    images = float64_images(store)
    mask = reference.pca_mask(sigma, images, threshold)
    x = queries(store, sigma)
    error = gap(
        store, PCA(store, threshold), x, sigma, lambda q: reference.pca(q, sigma, images, mask)
    )
    assert error < 1e-4


@pytest.mark.parametrize("sigma", [0.05, 1.0, 12.0])
@pytest.mark.parametrize("batch_size", [1, 33, 256])
def test_wss_is_the_average_of_batch_averages(store, queries, sigma, batch_size):
    images = float64_images(store)
    mask = reference.pca_mask(sigma, images, 0.05)
    x = queries(store, sigma)
    denoiser = PCA(store, 0.05, weighting="wss", batch_size=batch_size)
    error = gap(
        store, denoiser, x, sigma, lambda q: reference.pca_wss(q, sigma, images, mask, batch_size)
    )
    assert error < 1e-4


@pytest.mark.parametrize("sigma", SIGMAS)
def test_the_mask_equals_its_definition(store, sigma):
    images = float64_images(store)
    direct = reference.pca_mask(sigma, images, 0.02)
    assert np.array_equal(locality_mask(store.factor(), sigma, 0.02), direct)


def test_the_mask_is_normalised_by_the_input_value(make_store):
    """Value 0 varies ten times as much as value 1: only its mask holds the other value."""
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(4000, 1, generator=generator)
    store = make_store(
        torch.cat([a, 0.1 * a + 0.05 * torch.randn(4000, 1, generator=generator)], 1)
    )
    w = store.factor().wiener_matrix(1.0)
    ratio = np.abs(w / w.diagonal()[:, None])
    assert ratio[1, 0] > 1 > ratio[0, 1]
    mask = locality_mask(store.factor(), 1.0, 0.5)
    assert mask[1, 0]
    assert not mask[0, 1]


def test_means_of_3000_images_are_accurate_at_sigma_80(make_store, smooth_images, queries):
    store = make_store(smooth_images(3000, (3, 16, 16)))
    images = float64_images(store)
    x = queries(store, 80.0, b=2)
    assert gap(store, Optimal(store), x, 80.0, lambda q: reference.optimal(q, 80.0, images)) < 1e-5
    mask = reference.pca_mask(80.0, images, 0.02)
    error = gap(store, PCA(store), x, 80.0, lambda q: reference.pca(q, 80.0, images, mask))
    assert error < 1e-5


@pytest.mark.kernels
def test_means_of_near_duplicates_are_accurate_at_sigma_0_002(make_store, smooth_images):
    base = smooth_images(1, (3, 16, 16))
    twins = base.repeat(50, 1, 1, 1)
    for i in range(50):  # each twin differs from the base by one grey level of one pixel
        twins[i].view(-1)[i] ^= 1
    store = make_store(torch.cat([smooth_images(100, (3, 16, 16), seed=5), twins]))
    noise = 0.002 * torch.randn(50, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    x = store.images(list(range(100, 150))) + noise
    images = float64_images(store)
    for denoiser in (Optimal(store), PCA(store, 0.0, share="pixel")):  # whole masks: the same
        error = gap(store, denoiser, x, 0.002, lambda q: reference.optimal(q, 0.002, images))
        assert error < 1e-5


@pytest.fixture(scope="module")
def black_and_white(make_store):
    """Images that all have the same distance to 0 in float64."""
    bits = torch.rand((300, 3, 16, 16), generator=torch.Generator().manual_seed(0)) < 0.4
    return make_store(255 * bits.to(torch.uint8))


@pytest.mark.kernels
@pytest.mark.parametrize("value", [0.0, 0.1, -1.0])
@pytest.mark.parametrize("sigma", [0.002, 0.05, 1.0, 80.0])
def test_optimal_is_accurate_for_tied_images_far_from_the_query(black_and_white, value, sigma):
    store, images = black_and_white, float64_images(black_and_white)
    x = torch.full((1, 3, 16, 16), value)
    error = gap(store, Optimal(store), x, sigma, lambda q: reference.optimal(q, sigma, images))
    assert error < 1e-5


@pytest.mark.kernels
@pytest.mark.parametrize("ratio", [30, 1e3, 1e5])
@pytest.mark.parametrize("sigma", [0.5, 10.0, 1e3])
def test_optimal_is_accurate_for_queries_with_far_more_noise_than_sigma(
    store, queries, sigma, ratio
):
    images, x = float64_images(store), queries(store, sigma * ratio)
    error = gap(store, Optimal(store), x, sigma, lambda q: reference.optimal(q, sigma, images))
    assert error < 1e-5


def test_constant_values_give_accurate_finite_means(make_store, smooth_images, queries):
    """As at MNIST's border: values of zero variance, by which the mask is normalised."""
    pixels = smooth_images(120, (1, 8, 8))
    pixels[:, :, 0] = 0
    pixels[:, :, :, -1] = 255
    store = make_store(pixels)
    images = float64_images(store)
    for sigma in (0.002, 0.1, 2.0, 80.0):
        x = queries(store, sigma)
        mask = reference.pca_mask(sigma, images, 0.02)
        error = gap(
            store, PCA(store), x, sigma, lambda q, s=sigma, m=mask: reference.pca(q, s, images, m)
        )
        assert error < 1e-4
        assert torch.isfinite(Wiener(store)(x, sigma)).all()


@pytest.mark.parametrize("sigma", [0.05, 1.0, 12.0])
@pytest.mark.parametrize("memory", [2e9, 3e5])
def test_leave_one_out_log_weights_give_the_mean_of_the_others(store, queries, sigma, memory):
    images, x = float64_images(store), queries(store, sigma)
    left_out = [None, 3, 0, store.n - 1]

    def all_but(row):
        weights = np.zeros(store.n)
        weights[[] if row is None else [row]] = -np.inf
        return store.everything(LogWeights.of(weights))

    supports = [all_but(row) for row in left_out]
    flat = x.numpy().reshape(len(x), -1)
    means = Optimal(store, memory_limit=memory).denoise_over(flat, sigma, supports)
    for mean, query, row in zip(means, flat.astype(np.float64), left_out, strict=True):
        others = images if row is None else np.delete(images, row, axis=0)
        assert np.abs(mean - reference.optimal(query, sigma, others)).max() < 1e-5
    pca = PCA(store, 0.1)
    means = pca.denoise_over(flat, sigma, supports)
    for mean, query, support in zip(means, flat, supports, strict=True):
        assert np.array_equal(mean, pca.denoise_over(query[None], sigma, support)[0])


def test_pca_is_exact_between_images_that_float32_cannot_tell_apart(make_store, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (40, 3, 8, 8), dtype=torch.uint8, generator=generator)
    store = make_store(images)
    x = (store.images(range(8)) + store.images(range(8, 16))) / 2
    x += 1e-6 * torch.randn(x.shape, generator=generator)
    for base in (PCA(store, 0.3), PCA(store, 0.0)):
        for denoiser in (base, GoldDiff(base, PaperSchedule(1.0, 1.0, 1.0, 1.0))):
            for sigma in (0.01, 0.001, 0.0003):
                exact = denoiser.posterior(x, sigma).mean
                assert (denoiser(x, sigma) - exact).abs().max() < 2e-4
    monkeypatch.setattr("golddiff.estimators.pca_float64.TOL", float("inf"))
    assert (base(x, sigma) - exact).abs().max() > 0.1
