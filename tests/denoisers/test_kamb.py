"""Kamb: its float64 equations, symmetries, boundaries and patch sizes."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff.estimators.kamb import Kamb, nearest_odd, preset
from golddiff.estimators.pca import mask_width
from golddiff.kernels.roots import squares
from golddiff.noise import precision
from golddiff.support import Support
from golddiff.system.errors import ArgumentError
from reliability.reference import kamb
from tests.conftest import float64_images

BOUNDARIES = ("none", "circular", "zeros")
SIGMAS = (0.01, 0.1, 1.0, 5.0, 80.0)

SHAPES = {
    (1, 7, 9): np.uint8,
    (3, 6, 5): np.uint8,
    (2, 8, 6): np.float32,
    (3, 7, 7): np.float32,
}


def pixels(n, shape, dtype=np.uint8, seed=0):
    generator = np.random.default_rng(seed)
    if dtype == np.uint8:
        return generator.integers(0, 256, (n, *shape), np.uint8)
    return generator.uniform(-1, 1, (n, *shape)).astype(np.float32)


def noisy(store, sigma, b=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    rows = torch.arange(b) % store.n
    return store.images(rows) + sigma * torch.randn((b, *store.shape), generator=generator)


@pytest.fixture(scope="module")
def random_stores(make_store):
    return {shape: make_store(pixels(3, shape, dtype)) for shape, dtype in SHAPES.items()}


@pytest.mark.parametrize("sigma", [0.5, 0.51, 2.0, 80.0])
@pytest.mark.parametrize("offset", [0, 10, 1000])
def test_values_of_any_size_cost_no_digits(make_store, offset, sigma):
    generator = np.random.default_rng(0)
    images = generator.standard_normal((40, 1, 6, 6)).cumsum(-1) + offset
    images[:, 0, 0, 0] *= -1
    store = make_store(images.astype(np.float32))
    x = noisy(store, sigma)
    means = Kamb(store, patch_sizes=3, boundary="none")(x, sigma).double().numpy()
    expected = kamb(x[0].double().numpy(), sigma, store.images().double().numpy(), 3, "none")
    assert np.abs(means[0] - expected).max() < 1e-6 * np.abs(images).max()


@pytest.mark.parametrize("kind", [np.asarray, torch.from_numpy])
def test_squares_of_values_of_any_size_cost_no_digits(kind):
    generator, sigma = np.random.default_rng(0), 0.6
    images = (1000 + generator.standard_normal((9, 64))).astype(np.float32)
    query = images[0] + np.float32(sigma) * generator.standard_normal(64, np.float32)
    query[:32], images[:, :32] = query[:32] - 1000, images[:, :32] - 1000
    sums = np.asarray(squares(kind(images), kind(query), precision(sigma))).sum(1, np.float64)
    exact = np.square(images - query.astype(float)).sum(1)
    assert np.abs((sums - sums[0]) - (exact - exact[0])).max() < 1e-3


@pytest.fixture(scope="module")
def digits(make_store, smooth_images):
    """A store of 150 images, which the kernel splits into several tasks."""
    return make_store(smooth_images(150, (1, 8, 8)))


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("patch", [1, 3, 7, 9, 31])
def test_kernel_equals_the_float64_equations(random_stores, shape, patch, boundary):
    store = random_stores[shape]
    denoiser = Kamb(store, patch_sizes=patch, boundary=boundary)
    images = float64_images(store).reshape(-1, *shape)
    for sigma in SIGMAS:
        x = noisy(store, sigma)
        expected = kamb(x[0].double().numpy(), sigma, images, patch, boundary)
        assert np.abs(denoiser(x, sigma)[0].numpy() - expected).max() < 1e-4


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_kernel_equals_the_float64_equations_on_smooth_images(make_store, smooth_images, boundary):
    store = make_store(smooth_images(9, (1, 8, 8)))
    images = float64_images(store).reshape(-1, *store.shape)
    for sigma in SIGMAS:
        x = noisy(store, sigma)
        expected = kamb(x[0].double().numpy(), sigma, images, 3, boundary)
        actual = Kamb(store, 3, boundary)(x, sigma)[0].numpy()
        assert np.abs(actual - expected).max() < 1e-4


@given(
    down=st.integers(0, 7), right=st.integers(0, 8), sigma=st.floats(0.05, 20), seed=st.integers(0)
)
def test_circular_commutes_with_shifts(random_stores, down, right, sigma, seed):
    denoiser = Kamb(random_stores[1, 7, 9], 3, "circular")
    x = noisy(denoiser.store, sigma, seed=seed % 2**32)
    shifted = denoiser(torch.roll(x, (down, right), (2, 3)), sigma)
    expected = torch.roll(denoiser(x, sigma), (down, right), (2, 3))
    assert torch.allclose(shifted, expected, atol=1e-5)


def test_boundary_zeros_with_a_patch_as_large_as_the_image_is_none(digits):
    x = noisy(digits, 1.0, b=2)
    for patch in (9, 15, 33):
        assert torch.equal(Kamb(digits, patch)(x, 1.0), Kamb(digits, patch, "none")(x, 1.0))


def test_a_patch_that_covers_the_image_everywhere_gives_optimal(digits):
    from golddiff.estimators.optimal import Optimal

    for sigma in (0.3, 2.0, 20.0):
        x = noisy(digits, sigma, b=2)
        for patch in (15, 101):
            assert torch.allclose(
                Kamb(digits, patch)(x, sigma), Optimal(digits)(x, sigma), atol=1e-5
            )


def test_circular_patches_hold_no_pixel_twice(random_stores):
    assert Kamb(random_stores[1, 7, 9], 31, "circular").patch_size(1.0) == 7
    assert Kamb(random_stores[3, 6, 5], 31, "circular").patch_size(1.0) == 5
    assert Kamb(random_stores[2, 8, 6], 31, "circular").patch_size(1.0) == 5


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("sigma", [0.1, 1.0, 30.0])
def test_two_halves_of_a_support_merge_into_the_whole(digits, boundary, sigma):
    denoiser = Kamb(digits, 3, boundary)
    x = noisy(digits, sigma, b=2).reshape(2, -1).numpy()
    rows = np.arange(digits.n)
    a, b = (
        denoiser.store.posterior(denoiser, x, sigma, Support(part))
        for part in (rows[:61], rows[61:])
    )
    whole = denoiser.store.posterior(denoiser, x, sigma, Support(rows))
    assert np.allclose(a.merge(b).mean(), whole.mean(), atol=1e-5)
    assert np.allclose(a.merge(b).log_max, whole.log_max, atol=1e-4)


def test_images_of_log_weight_minus_infinity_are_ignored(digits):
    denoiser = Kamb(digits, 3)
    x = noisy(digits, 1.0).reshape(1, -1).numpy()
    weighted = Support(np.arange(20), np.where(np.arange(20) < 15, 0.0, -np.inf))
    a = denoiser.store.posterior(denoiser, x, 1.0, weighted)
    assert np.allclose(
        a.mean(), denoiser.store.posterior(denoiser, x, 1.0, Support(np.arange(15))).mean()
    )
    empty = denoiser.store.posterior(denoiser, x, 1.0, Support(np.arange(2), np.full(2, -np.inf)))
    assert np.isneginf(empty.log_max).all()
    assert (empty.total == 0).all()


def test_the_posterior_of_no_images_raises(digits):
    with pytest.raises(ArgumentError, match="got no images"):
        digits.posterior(Kamb(digits, 3), np.zeros((2, 64), np.float32), 1.0, Support(np.arange(0)))


def test_patch_sizes_interpolate_in_log_sigma_and_are_constant_outside(make_store):
    denoiser = Kamb(make_store(pixels(2, (1, 40, 40))), [(10.0, 21), (0.1, 3)])
    sizes = [denoiser.patch_size(s) for s in (0.001, 0.1, 1.0, 10.0, 1000.0)]
    assert sizes == [3, 3, 13, 21, 21]  # halfway in log sigma: 12, a tie, upwards


def test_nearest_odd_rounds_ties_up():
    assert [nearest_odd(v) for v in (0.2, 1.9, 2.0, 3.9, 4.0, 5.0)] == [1, 1, 3, 3, 5, 5]


def test_a_preset_is_the_authors_list(make_store):
    store = make_store(pixels(2, (3, 32, 32)))
    pairs = preset("cifar10_unet_zeros")
    assert len(pairs) == 19
    t = 10 / 20
    alpha_bar = np.cos(np.pi / 2 * t / 1.008) ** 2
    assert pairs[9] == (pytest.approx(np.sqrt((1 - alpha_bar) / alpha_bar)), 7)
    denoiser = Kamb(store, "cifar10_unet_zeros")
    assert [denoiser.patch_size(s) for s, _ in pairs] == [p for _, p in pairs]
    assert (denoiser.patch_size(1e-3), denoiser.patch_size(1e3)) == (3, 25)


def test_a_preset_of_larger_images_is_clipped_to_the_image(digits):
    assert Kamb(digits, "mnist_unet_zeros").patch_size(80.0) == 9  # LS, since it covers 8 x 8
    assert Kamb(digits, "mnist_resnet_circular", "circular").patch_size(2.0) == 7


def test_the_default_patch_has_the_area_of_the_pca_masks(make_store, smooth_images):
    store = make_store(smooth_images(60, (3, 8, 8)))
    denoiser = Kamb(store)
    for sigma in (0.01, 0.3, 1.0, 10.0):
        side = np.sqrt(mask_width(store, sigma) / 3)
        size = denoiser.patch_size(sigma)
        assert size % 2 == 1
        assert size == min(9, max(3, nearest_odd(side)))
        assert denoiser.relevance(sigma) == pytest.approx(min(1, size**2 / 64))  # share of an image
    noise = torch.randint(0, 256, (3000, 1, 6, 6), generator=torch.Generator().manual_seed(0))
    assert Kamb(make_store(noise.to(torch.uint8))).patch_size(0.01) == 3  # masks of one value


@pytest.mark.parametrize(
    ("patch_sizes", "message"),
    [
        (4, "size 4, expected an odd integer"),
        (0, "size 0"),
        (-3, "size -3"),
        (3.0, "size 3.0"),
        (True, "size True"),
        ("cifar10", "'cifar10'.*cifar10_unet_zeros.*mnist_unet_zeros"),
        ([], "at least one pair"),
        ([(1.0, 3), (1.0, 5)], "all sigmas different"),
        ([(1.0, 4)], "size 4"),
        ([(0.0, 3)], "sigma 0.0"),
        ([("1", 3)], "sigma '1'"),
        ([(float("nan"), 3)], "sigma nan"),
        ([3, 5], "got 3, expected pairs"),
        ({3: 5}, "size {3: 5}"),
    ],
)
def test_bad_patch_sizes_are_refused(digits, patch_sizes, message):
    with pytest.raises(ArgumentError, match=r"patch_sizes: .*" + message):
        Kamb(digits, patch_sizes)


def test_an_unknown_boundary_is_refused_with_the_known_ones(digits):
    with pytest.raises(ArgumentError, match=r"boundary: got 'reflect'.*zeros.*circular.*none"):
        Kamb(digits, 3, "reflect")
