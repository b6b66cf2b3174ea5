"""The patch mixture averages exact posterior means of patches."""

import numpy as np
import pytest
import torch

from golddiff import PatchMixture, Wiener
from reliability import reference

SIGMAS = (0.01, 0.3, 1.0, 6.0, 157.0)


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(600, (2, 6, 5)), torch.arange(600) % 3)


def prior(fitted):
    """Weights, means and full covariances of a region's fitted prior."""
    inner_means, u = fitted.means, fitted.vectors.astype(np.float64)
    r = inner_means.shape[1]
    means, covariances = [], []
    for mean, variances, axes in zip(inner_means, fitted.variances, fitted.axes, strict=True):
        inner = np.diag(fitted.values)
        inner[:r, :r] = axes.astype(np.float64) * variances @ axes.T.astype(np.float64)
        means.append(fitted.mean + u[:, :r] @ mean)
        covariances.append(u @ inner @ u.T)
    return np.exp(fitted.log_weights), np.array(means), np.array(covariances)


def patch_starts(size, side):
    """(start, region) of each patch along an axis: at most three regions, the first the largest."""
    starts = sorted({*range(0, size - side + 1, max(1, side // 2)), size - side})
    sizes = [len(starts) // 3 + (i < len(starts) % 3) for i in range(3)]
    return list(zip(starts, np.repeat(range(3), sizes).tolist(), strict=True))


@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize(("side", "rank"), [(3, 64), (2, 3), (1, 64), (5, 10)])
def test_it_is_the_tent_weighted_mean_of_patch_posterior_means(store, queries, sigma, side, rank):
    mixture = PatchMixture(store, side=side, rank=rank, components=3, shrinkage=20)
    priors = [prior(fitted) for fitted in mixture.fitted()]
    assert all(len(weights) == 3 for weights, _, _ in priors)
    rows, columns = patch_starts(6, side), patch_starts(5, side)
    across = columns[-1][1] + 1
    assert len(priors) == (rows[-1][1] + 1) * across
    x = queries(store, sigma, b=2)
    tent = np.minimum(np.arange(1, side + 1), np.arange(side, 0, -1))
    tent_weights = np.outer(tent, tent)
    for query, answer in zip(x.double().numpy(), mixture(x, sigma).numpy(), strict=True):
        sums, weights = np.zeros_like(query), np.zeros(query.shape[1:])
        for i, down in rows:
            for j, right in columns:
                window = np.s_[:, i : i + side, j : j + side]
                clean = reference.gaussian_mixture(
                    query[window].ravel(), sigma, *priors[down * across + right]
                )
                sums[window] += clean.reshape(query[window].shape) * tent_weights
                weights[window[1:]] += tent_weights
        assert np.abs(answer - sums / weights).max() < 1e-4


def test_one_component_over_the_whole_image_is_wiener(make_store, smooth_images, queries):
    store = make_store(smooth_images(300, (1, 4, 4)))
    mixture = PatchMixture(store, side=4, components=1, shrinkage=0)
    for sigma in SIGMAS:
        x = queries(store, sigma)
        assert (mixture(x, sigma) - Wiener(store)(x, sigma)).abs().max() < 1e-3


def test_each_region_has_its_own_prior(make_store):
    images = torch.full((300, 1, 16, 16), -1.0)
    images[..., 8:] = 1
    images += 0.1 * torch.rand(images.shape, generator=torch.Generator().manual_seed(0))
    store = make_store(images.clamp(-1, 1))
    far = PatchMixture(store, side=4)(torch.zeros(1, 1, 16, 16), 100.0)
    assert far[..., :5].max() < -0.7
    assert far[..., 11:].min() > 0.7


def test_the_fitted_patches_are_those_of_a_region_shifted_by_up_to_a_pixel_each_way(make_store):
    columns = torch.arange(16.0).expand(4000, 1, 16, 16)
    mixture = PatchMixture(make_store(columns - 20), side=4, components=1)
    fitted = mixture.fitted()[4]  # of 3 x 3; its patches begin at 6 and 8
    assert fitted.mean[:4] + 20 == pytest.approx(np.arange(7, 11), abs=0.1)
    along = fitted.vectors.astype(np.float64)[0] ** 2 @ fitted.values
    assert along == pytest.approx(1 + 2 / 3, rel=0.1)


def test_low_noise_returns_the_input_and_high_noise_one_image(store, queries):
    mixture = PatchMixture(store)
    x = queries(store, 1e-3)
    assert (mixture(x, 1e-3) - x).abs().max() < 0.01
    far = mixture(queries(store, 1e4), 1e4)
    assert (far.std(dim=0)).max() < 0.01


def test_labels_do_not_change_the_output(store, queries):
    mixture, x = PatchMixture(store), queries(store, 0.5, b=3)
    assert (mixture(x, 0.5, labels=[0, 1, 2]) - mixture(x, 0.5)).abs().max() < 1e-6


def test_the_seed_decides_the_fit(store, queries):
    x = queries(store, 0.5)
    first, second, third = (PatchMixture(store, seed=seed)(x, 0.5) for seed in (3, 3, 4))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


@pytest.mark.parametrize(
    ("shape", "side"),
    [((1, 28, 28), 14), ((3, 8, 8), 4), ((1, 40, 48), 16), ((3, 64, 9), 4), ((4, 1, 1), 1)],
)
def test_the_default_side_depends_on_the_image_size(make_store, shape, side):
    store = make_store(2 * torch.rand(12, *shape, generator=torch.Generator().manual_seed(0)) - 1)
    mixture = PatchMixture(store)
    assert mixture.side == side
    assert mixture(torch.randn(2, *shape), 0.5).isfinite().all()
