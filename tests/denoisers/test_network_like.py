"""``network_like``: the median of golden and Gaussian posterior means."""

import shutil

import numpy as np
import pytest
import torch

import golddiff
from golddiff.estimators.describe import build, describe
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.mixture import GaussianMixture
from golddiff.estimators.network_like import (
    ARTIFACT,
    FEWEST_TO_MIRROR,
    GOLDEN_BELOW,
    HAZE,
    FewImages,
    mirrored_is_likely,
    square_sizes,
)
from golddiff.estimators.patch_mixture import PatchMixture
from golddiff.sampling import sample
from golddiff.system.errors import ArgumentError


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(400, (1, 8, 8)), torch.arange(400) % 2)


@pytest.fixture(scope="module")
def denoiser(store):
    return golddiff.network_like(store)


def median(denoiser, x, sigma):
    """The median of the parts' clipped posterior means."""
    parts = torch.stack([part(x, sigma).clamp(-1, 1) for part in denoiser.parts(sigma)])
    ordered = parts.sort(dim=0).values
    return (ordered[(len(parts) - 1) // 2] + ordered[len(parts) // 2]) / 2


@pytest.fixture(scope="module")
def brighter_left(smooth_images):
    """Images (400, 1, 8, 8) with less light on the right than on the left."""
    return (smooth_images(400, (1, 8, 8)) * torch.linspace(1, 0.2, 8)).to(torch.uint8)


def test_it_is_the_median_of_four_parts_and_the_mixture_at_high_noise(
    make_store, brighter_left, queries
):
    store = make_store(brighter_left)
    denoiser = golddiff.network_like(store)
    assert [type(p) for p in denoiser.parts(0.1)] == [
        GoldDiff, GoldDiff, GaussianMixture, PatchMixture,
    ]  # fmt: skip
    assert [type(p) for p in denoiser.parts(GOLDEN_BELOW)] == [GaussianMixture]
    for sigma in (0.1, 1.0, GOLDEN_BELOW):
        x = queries(store, sigma)
        assert (denoiser(x, sigma) - median(denoiser, x, sigma)).abs().max() < 1e-6
    assert denoiser.mirrors is False


def test_if_mirrored_images_are_likely_the_output_is_averaged_with_the_mirrored_one(
    store, denoiser, queries
):
    for sigma in (0.1, 1.0, GOLDEN_BELOW):
        x = queries(store, sigma)
        both = median(denoiser, x, sigma) + median(denoiser, x.flip(-1), sigma).flip(-1)
        assert (denoiser(x, sigma) - both / 2).abs().max() < 1e-6
        assert torch.equal(denoiser(x.flip(-1), sigma), denoiser(x, sigma).flip(-1))
    assert denoiser.mirrors is True


def test_images_of_digits_and_too_few_images_are_not_mirrored(make_store, smooth_images):
    assert not mirrored_is_likely(golddiff.load("digits"))
    assert not mirrored_is_likely(make_store(smooth_images(FEWEST_TO_MIRROR - 1, (1, 8, 8))))
    assert mirrored_is_likely(make_store(smooth_images(FEWEST_TO_MIRROR, (1, 8, 8))))


def test_values_near_black_are_darkened_on_a_black_background(make_store, brighter_left, queries):
    store = make_store((brighter_left.int() - 100).clamp(min=0).to(torch.uint8))
    denoiser = golddiff.network_like(store)
    for sigma in (0.3, 2.0):
        x = queries(store, sigma)
        before = median(denoiser, x, sigma)
        assert ((before > -1) & (before < HAZE - 1)).any()
        out = denoiser(x, sigma)
        assert (out[before < HAZE - 1] == -1).all()
        assert (out - before)[before > 2 * HAZE - 1].abs().max() < 1e-6
        between = (before > HAZE - 1) & (before < 2 * HAZE - 1)
        assert between.any()
        assert (out - (2 * before + 1 - 2 * HAZE))[between].abs().max() < 1e-6
    x = queries(store, GOLDEN_BELOW)  # where haze is not yet told from an image
    assert torch.equal(denoiser(x, GOLDEN_BELOW), median(denoiser, x, GOLDEN_BELOW))


def test_fitted_arrays_are_saved_in_the_store_with_a_checksum(store, denoiser, queries):
    denoiser.fit()
    reopened = golddiff.ImageStore.open(store.path)
    assert reopened.artifacts.head(ARTIFACT) is not None
    reopened.verify()
    loaded = golddiff.network_like(reopened)
    assert loaded.is_ready
    x = queries(store, 1.0)
    assert torch.equal(loaded(x, 1.0), denoiser(x, 1.0))


def test_a_read_only_store_gives_the_same_output(store, denoiser, queries, tmp_path, monkeypatch):
    denoiser.fit()
    shutil.copytree(store.path, tmp_path / "copy")
    copy = golddiff.ImageStore.open(tmp_path / "copy")
    copy.artifacts.path(ARTIFACT).unlink()

    def refused(*_):
        raise PermissionError("read-only")

    monkeypatch.setattr("golddiff.store.artifacts.atomic_write", refused)
    x = queries(store, 1.0)
    assert torch.equal(golddiff.network_like(copy)(x, 1.0), denoiser(x, 1.0))
    assert not copy.artifacts.path(ARTIFACT).exists()


def test_a_class_gives_images_of_that_class(make_store):
    rng = np.random.default_rng(0)
    labels = torch.arange(200) % 2
    pixels = 60 + 130 * labels.numpy()[:, None, None, None] + rng.integers(0, 20, (200, 1, 6, 6))
    denoiser = golddiff.network_like(make_store(pixels.astype(np.uint8), labels))
    for label in (0, 1):
        images = sample(denoiser, 2, steps=4, labels=label).images
        expected = (70 + 130 * label) / 127.5 - 1
        assert (images.mean() - expected).abs() < 0.1


@pytest.mark.parametrize(("shape", "parts"), [((1, 3, 9), 3), ((2, 4, 4), 4)])
def test_images_under_4_pixels_have_no_patches(make_store, smooth_images, shape, parts):
    denoiser = golddiff.network_like(make_store(smooth_images(40, shape)))
    assert len(denoiser.parts(1.0)) == parts
    assert sample(denoiser, 2, steps=3).images.isfinite().all()


@pytest.mark.parametrize("n", [1, 2, 20])
def test_up_to_20_images_give_finite_samples(make_store, smooth_images, n):
    store = make_store(smooth_images(n, (1, 4, 4)))
    images = sample(golddiff.network_like(store), 2, steps=3).images
    assert images.isfinite().all()
    if n == 1:
        assert torch.allclose(images, store.images([0, 0]), atol=1e-5)


@pytest.mark.parametrize("source", ["moons", "constant", "latents"])
def test_points_latents_and_constant_images_give_finite_samples(make_store, source):
    generator = torch.Generator().manual_seed(0)
    data = {
        "moons": "moons",
        "constant": torch.full((40, 1, 4, 4), 9, dtype=torch.uint8),
        "latents": 4 * torch.randn(60, 4, 3, 3, generator=generator),
    }[source]
    store = make_store(data)
    images = sample(golddiff.network_like(store), 3, steps=3).images
    assert images.isfinite().all()
    if source == "constant":
        assert torch.allclose(images, store.images([0, 0, 0]), atol=1e-5)


@pytest.mark.parametrize(
    ("side", "expected"), [(32, [20, 15, 11, 9, 7, 5, 3]), (8, [5, 4, 3, 3, 3, 3, 3])]
)
def test_patch_sizes_of_its_squares_at_ddim_noise_levels(side, expected):
    sizes = square_sizes(side)
    nearest_sizes = [
        min(sizes, key=lambda pair: abs(pair[0] - sigma))[1]
        for sigma in (6.17, 3.44, 2.04, 1.24, 0.72, 0.34, 0.01)
    ]
    assert nearest_sizes == expected
    assert sizes[0][1] == side


@pytest.mark.parametrize("n", [1, 3, 100, 1797, 60_000, 10**7])
def test_its_golden_subsets_hold_at_most_800_images(n):
    for sigma in (0.002, 1.0, 157.0):
        m, k = FewImages().budgets(sigma, n)
        assert 1 <= k <= m <= n
        assert k <= 800


def test_attribute_is_refused_but_works_on_its_golden_part(store, denoiser, queries):
    x = queries(store, 1.0, b=1)
    with pytest.raises(ArgumentError, match=r"has no sources; expected .* its attribute golden"):
        denoiser.attribute(x, 1.0)
    assert denoiser.golden.attribute(x, 1.0)


def test_with_seed_changes_the_seeds_and_shares_the_base(store, denoiser, queries):
    reseeded = denoiser.with_seed(7)
    assert reseeded.golden.base is denoiser.golden.base
    x = queries(store, 1.0)
    assert torch.equal(reseeded(x, 1.0), golddiff.network_like(store, 7)(x, 1.0))
    assert (denoiser.golden.seed, reseeded.golden.seed, reseeded.seed) == (0, 7, 7)
    assert [part.seed for part in reseeded.parts(1.0)[:2]] == [7, 7]


def test_a_description_builds_the_same_denoiser(store, denoiser, queries):
    described = describe(golddiff.network_like(store, seed=5))
    assert described == {"method": "network-like", "seed": 5}
    x = queries(store, 1.0)
    assert torch.equal(build(described, store)(x, 1.0), golddiff.network_like(store, 5)(x, 1.0))
