"""Patch set posterior composites: their equation, patch sizes, heatmaps and supports."""

import json

import numpy as np
import pytest
import torch

from golddiff import AdaptiveSchedule, GoldDiff, PSPCFlex, PSPCSquare, Wiener, create
from golddiff.estimators.describe import build, describe
from golddiff.system.errors import ArgumentError
from reliability import reference
from tests.conftest import float64_images

SIGMAS = [0.01, 0.3, 3.0, 80.0]
SHAPES = {"uint8 colour": (3, 8, 8), "odd grey": (1, 7, 9)}


@pytest.fixture(scope="module", params=["uint8 colour", "odd grey", "float32 latents"])
def store(request, make_store, smooth_images):
    if request.param == "float32 latents":
        return make_store(torch.randn(90, 4, 4, 5, generator=torch.Generator().manual_seed(2)))
    return make_store(smooth_images(150, SHAPES[request.param]), torch.arange(150) % 3)


@pytest.fixture(scope="module")
def heatmaps(store, tmp_path_factory):
    """A file of random positive sensitivities at three noise levels."""
    _, height, width = store.shape
    maps = np.random.default_rng(0).gamma(0.5, size=(3, height, width, height, width))
    path = tmp_path_factory.mktemp("heatmaps") / "maps.npy"
    np.save(path, maps.astype(np.float32))
    return path


def squares(shape, p):
    """Masks (K, H, W) of all squares of side p within an image."""
    _, height, width = shape
    masks = []
    for top in range(height - p + 1):
        for left in range(width - p + 1):
            patch = np.zeros((height, width), bool)
            patch[top : top + p, left : left + p] = True
            masks.append(patch)
    return np.array(masks)


def gap(store, estimator, x, sigma, patches):
    images = float64_images(store).reshape(-1, *store.shape)
    actual = estimator(x, sigma).double().numpy()
    expected = [reference.patch_composite(q, sigma, images, patches) for q in x.double().numpy()]
    return np.abs(actual - np.stack(expected)).max()


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("p", [1, 3, 4])
def test_square_averages_the_squares_that_hold_a_pixel(store, queries, sigma, p):
    x = queries(store, sigma)
    assert gap(store, PSPCSquare(store, p), x, sigma, squares(store.shape, p)) < 1e-5


def test_the_relevance_is_the_mean_patch_of_a_pixel(store):
    patches = squares(store.shape, 3).reshape(-1, store.shape[1] * store.shape[2])
    expected = np.mean([patches[patches[:, i]].mean(axis=0) for i in range(patches.shape[1])], 0)
    actual = PSPCSquare(store, 3).relevance(1.0).reshape(store.shape[0], -1)
    assert np.abs(actual - expected).max() < 1e-6


@pytest.mark.kernels
@pytest.mark.parametrize(("sigma", "level"), [(0.002, 2), (2.0, 1), (30.0, 1), (60.0, 0)])
def test_flex_takes_the_fewest_pixels_that_reach_the_share(store, queries, heatmaps, sigma, level):
    maps = np.load(heatmaps)[level].astype(np.float64)
    patches = np.zeros_like(maps, bool)
    for y, x in np.ndindex(maps.shape[:2]):
        held = 0.0
        for place in np.argsort(-maps[y, x], axis=None):  # largest first
            if held < 0.6 * maps[y, x].sum():
                patches[y, x].flat[place] = True
                held += maps[y, x].flat[place]
    patches = patches.reshape(-1, *patches.shape[2:])
    flex = PSPCFlex(store, (0.6, 0.6, 0.6), heatmaps)
    assert gap(store, flex, queries(store, sigma), sigma, patches) < 1e-5


def test_rounding_does_not_decide_which_equally_sensitive_pixels_flex_takes(
    make_store, smooth_images, tmp_path
):
    rounded = 1 + 1e-12 * np.random.default_rng(0).random((2, 4, 4, 4, 4))
    np.save(tmp_path / "maps.npy", rounded)
    flex = PSPCFlex(make_store(smooth_images(9, (1, 4, 4))), 0.5, tmp_path / "maps.npy")
    assert flex.ready(1.0).masks.all()


def test_without_heatmaps_flex_uses_the_sensitivity_of_wiener(store):
    """The sensitivity is the filter's change when one input value changes by 1."""
    sigma, (channels, height, width) = 0.8, store.shape
    wiener, pixels = Wiener(store), height * width
    at_zero = wiener(torch.zeros(1, *store.shape), sigma)
    changes = wiener(torch.eye(store.d).reshape(-1, *store.shape), sigma) - at_zero
    by_input = changes.abs().reshape(channels, pixels, channels, pixels).sum((0, 2)).numpy()
    masks = PSPCFlex(store, 0.5).ready(sigma).masks
    if store.shape != SHAPES["odd grey"]:  # its border hardly varies
        assert len(masks) == pixels
        for sensitivity, mask in zip(by_input.T, masks, strict=True):
            assert sensitivity[mask].sum() >= 0.499 * sensitivity.sum()
            least = sensitivity[mask].min()
            assert sensitivity[mask].sum() - least <= 0.501 * sensitivity.sum()
            assert sensitivity[~mask].max() <= least * 1.001
    assert masks.any(axis=0).all()


def test_the_patch_of_a_constant_pixel_is_that_pixel(make_store, smooth_images):
    images = smooth_images(300, (1, 8, 8))
    images[:, :, 0] = 0
    masks = PSPCFlex(make_store(images), 0.5).ready(0.8).masks
    of_border = masks[masks[:, :8].any(axis=1)]
    assert np.array_equal(of_border, np.eye(8, 64))


def test_one_patch_of_the_whole_image_is_optimal(store, queries):
    x = queries(store, 0.7)
    for denoiser in (PSPCSquare(store, 99), PSPCFlex(store, 1.0)):
        assert (denoiser(x, 0.7) - create("optimal", store)(x, 0.7)).abs().max() < 1e-5


def test_the_authors_patch_sizes_are_scaled_to_the_image(make_store, smooth_images):
    small, large = (make_store(smooth_images(3, (1, s, s))) for s in (16, 32))
    sizes = [PSPCSquare(large).patch_size(sigma) for sigma in (80, 5.3, 3.3, 1.9, 1.1, 0.6, 0.002)]
    assert sizes == [32, 23, 15, 11, 7, 5, 3]
    sizes = [PSPCSquare(small).patch_size(sigma) for sigma in (80, 5.3, 3.3, 1.9, 1.1, 0.6, 0.002)]
    assert sizes == [16, 12, 8, 6, 4, 3, 3]
    listed = PSPCSquare(small, [(2.0, 6), (0.1, 2)])
    assert [listed.patch_size(sigma) for sigma in (50.0, 1.1, 1.0, 0.01)] == [6, 6, 2, 2]


def test_a_small_memory_limit_changes_nothing(store, queries):
    x = queries(store, 1.0, 6)
    square = PSPCSquare(store, 3)
    whole = square(x, 1.0)
    part, each = square.working_bytes(store.n)
    for limit in (part + 15 * each, each / 2):
        assert (PSPCSquare(store, 3, memory_limit=limit)(x, 1.0) - whole).abs().max() < 1e-6


def test_adaptive_errors_are_within_tol(make_store, smooth_images):
    """The jackknife is taken over the composites, after averaging the patches."""
    pixels = smooth_images(6020, (3, 12, 12))
    full = PSPCSquare(make_store(pixels[:6000]))
    golden, drawn = GoldDiff(full, AdaptiveSchedule(0.05)), 0
    held_out = pixels[6000:].float() / 127.5 - 1
    noise = torch.randn(held_out.shape, generator=torch.Generator().manual_seed(0))
    for sigma in (20.0, 4.0):
        x = held_out + sigma * noise
        means, errors = golden.estimated(x, sigma)
        true_errors = (means - full(x, sigma)).flatten(1).square().mean(1).sqrt()
        assert (true_errors <= 0.05).sum() >= 18
        drawn += int((errors > 0).sum())
    assert drawn >= 20


def test_a_description_builds_the_same_denoiser(make_store, smooth_images, queries, tmp_path):
    store = make_store(smooth_images(30, (1, 6, 6)))
    np.save(tmp_path / "maps.npy", np.ones((2, 6, 6, 6, 6), np.float32))
    x = queries(store, 0.5)
    for denoiser in (
        PSPCSquare(store, [(1.0, 3), (0.1, 2)]),
        PSPCFlex(store, (0.4, 0.5), tmp_path / "maps.npy"),
        PSPCFlex(store, np.linspace(0.3, 1, 18)),
        PSPCFlex(store, torch.tensor(0.5)),
    ):
        assert repr(denoiser).startswith(type(denoiser).__name__)
        rebuilt = build(json.loads(json.dumps(describe(denoiser))), store)
        assert torch.equal(rebuilt(x, 0.5), denoiser(x, 0.5))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: PSPCSquare(s, 0), "patch_sizes: got 0"),
        (lambda s: PSPCSquare(s, "CIFAR10"), "patch_sizes: got 'CIFAR10'"),
        (lambda s: PSPCSquare(s, []), "at least one pair"),
        (lambda s: PSPCSquare(s, [3]), "patch_sizes: got 3, expected pairs"),
        (lambda s: PSPCSquare(s, [(1.0, 2.5)]), "patch_sizes: got 2.5"),
        (lambda s: PSPCSquare(s, [(-1.0, 3)]), "patch_sizes: got sigma -1.0"),
        (lambda s: PSPCFlex(s, 0), "thresholds: got 0"),
        (lambda s: PSPCFlex(s, (0.5, 1.5)), "thresholds"),
        (lambda s: PSPCFlex(s, ()), "thresholds"),
        (lambda s: PSPCFlex(s, "some"), "thresholds: got 'some'"),
        (lambda s: PSPCFlex(s, heatmaps="nowhere.npy"), "heatmaps: nowhere.npy is no NumPy file"),
    ],
)
def test_bad_arguments_are_refused(make_store, smooth_images, make, message):
    with pytest.raises(ArgumentError, match=message):
        make(make_store(smooth_images(3, (1, 6, 6))))


def test_bad_heatmaps_are_refused(make_store, smooth_images, tmp_path):
    store = make_store(smooth_images(3, (1, 6, 6)))
    for maps in (np.ones((2, 5, 5, 5, 5)), np.ones(3), np.ones((2, 6, 6, 6, 6), np.int64)):
        np.save(tmp_path / "maps.npy", maps)
        with pytest.raises(ArgumentError, match="expected floats"):
            PSPCFlex(store, 0.5, tmp_path / "maps.npy")
    for maps in (np.ones((0, 6, 6, 6, 6)), np.full((2, 6, 6, 6, 6), np.nan)):
        np.save(tmp_path / "maps.npy", maps)
        with pytest.raises(ArgumentError, match=r"expected floats|level 1 holds NaN"):
            PSPCFlex(store, 0.5, tmp_path / "maps.npy")(store.images([0]), 0.01)
    np.savez(tmp_path / "maps.npz", maps=maps)
    (tmp_path / "empty.npy").touch()
    for name in ("maps.npz", "empty.npy"):
        with pytest.raises(
            ArgumentError, match=rf"{name} is no NumPy file of numbers|expected flo"
        ):
            PSPCFlex(store, 0.5, tmp_path / name)
    np.save(tmp_path / "maps.npy", np.ones((2, 6, 6, 6, 6)))
    with pytest.raises(ArgumentError, match="thresholds: got 3, expected one, or 2"):
        PSPCFlex(store, (0.5, 0.5, 0.5), tmp_path / "maps.npy")
