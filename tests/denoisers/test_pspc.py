"""Patch set posterior composites equal their equation, wherever and over whatever they run."""

import json

import numpy as np
import pytest
import torch

from golddiff import AdaptiveSchedule, GoldDiff, PSPCFlex, PSPCSquare, Wiener, create
from golddiff.estimators.describe import build, describe
from golddiff.system.errors import ArgumentError
from golddiff_lab import reference
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
    """Sensitivities of three levels, any numbers above 0."""
    _, height, width = store.shape
    maps = np.random.default_rng(0).gamma(0.5, size=(3, height, width, height, width))
    path = tmp_path_factory.mktemp("heatmaps") / "maps.npy"
    np.save(path, maps.astype(np.float32))
    return path


def squares(shape, p):
    """Every square within an image, (K, H, W), one after the other."""
    _, height, width = shape
    found = []
    for top in range(height - p + 1):
        for left in range(width - p + 1):
            patch = np.zeros((height, width), bool)
            patch[top : top + p, left : left + p] = True
            found.append(patch)
    return np.array(found)


def worst(store, estimator, x, sigma, patches):
    images = float64_images(store).reshape(-1, *store.shape)
    got = estimator(x, sigma).double().numpy()
    want = [reference.patch_composite(q, sigma, images, patches) for q in x.double().numpy()]
    return np.abs(got - np.stack(want)).max()


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
@pytest.mark.parametrize("p", [1, 3, 4])
def test_square_is_the_mean_over_the_squares_that_hold_a_pixel(store, queries, sigma, p):
    x = queries(store, sigma)
    assert worst(store, PSPCSquare(store, p), x, sigma, squares(store.shape, p)) < 1e-5


@pytest.mark.kernels
@pytest.mark.parametrize(("sigma", "level"), [(0.002, 2), (2.0, 1), (60.0, 0)])
def test_flex_takes_the_fewest_pixels_that_hold_the_share(store, queries, heatmaps, sigma, level):
    maps = np.load(heatmaps)[level].astype(np.float64)
    patches = np.zeros_like(maps, bool)
    for y, x in np.ndindex(maps.shape[:2]):
        held = 0.0
        for place in np.argsort(-maps[y, x], axis=None):  # the largest first, until they suffice
            if held < 0.6 * maps[y, x].sum():
                patches[y, x].flat[place] = True
                held += maps[y, x].flat[place]
    patches = patches.reshape(-1, *patches.shape[2:])
    flex = PSPCFlex(store, (0.6, 0.6, 0.6), heatmaps)
    assert worst(store, flex, queries(store, sigma), sigma, patches) < 1e-5


def test_without_heatmaps_sensitivities_are_the_wiener_filter_s(store):
    """Its derivative: what its output moves by when one input value moves by 1."""
    sigma, (channels, height, width) = 0.8, store.shape
    wiener, pixels = Wiener(store), height * width
    still = wiener(torch.zeros(1, *store.shape), sigma)
    moved = wiener(torch.eye(store.d).reshape(-1, *store.shape), sigma) - still
    by_input = moved.abs().reshape(channels, pixels, channels, pixels).sum((0, 2)).numpy()
    masks = PSPCFlex(store, 0.5).ready(sigma).masks
    if store.shape != SHAPES["odd grey"]:  # whose border hardly varies
        assert len(masks) == pixels
        for sensitivity, mask in zip(by_input.T, masks, strict=True):
            assert sensitivity[mask].sum() >= 0.499 * sensitivity.sum()
            least = sensitivity[mask].min()
            assert sensitivity[mask].sum() - least <= 0.501 * sensitivity.sum()
            assert sensitivity[~mask].max() <= least * 1.001
    assert masks.any(axis=0).all()


def test_a_pixel_that_never_varies_is_a_patch_of_its_own(make_store, smooth_images):
    images = smooth_images(300, (1, 8, 8))
    images[:, :, 0] = 0
    masks = PSPCFlex(make_store(images), 0.5).ready(0.8).masks
    of_border = masks[masks[:, :8].any(axis=1)]
    assert np.array_equal(of_border, np.eye(8, 64))


def test_one_patch_of_everything_is_the_optimal_denoiser(store, queries):
    x = queries(store, 0.7)
    for made in (PSPCSquare(store, 99), PSPCFlex(store, 1.0)):
        assert (made(x, 0.7) - create("optimal", store)(x, 0.7)).abs().max() < 1e-5


def test_the_authors_sizes_at_their_levels_are_scaled_to_the_image(make_store, smooth_images):
    small, large = (make_store(smooth_images(3, (1, s, s))) for s in (16, 32))
    sizes = [PSPCSquare(large).patch_size(sigma) for sigma in (80, 5.3, 3.3, 1.9, 1.1, 0.6, 0.002)]
    assert sizes == [32, 23, 15, 11, 7, 5, 3]
    sizes = [PSPCSquare(small).patch_size(sigma) for sigma in (80, 5.3, 3.3, 1.9, 1.1, 0.6, 0.002)]
    assert sizes == [16, 12, 8, 6, 4, 3, 3]
    own = PSPCSquare(small, [(2.0, 6), (0.1, 2)])
    assert [own.patch_size(sigma) for sigma in (50.0, 1.1, 1.0, 0.01)] == [6, 6, 2, 2]


def test_a_small_memory_limit_changes_nothing(store, queries):
    x = queries(store, 1.0, 6)
    square = PSPCSquare(store, 3)
    whole = square(x, 1.0)
    fixed, each = square.working_bytes(store.n)
    tight = PSPCSquare(store, 3, memory_limit=fixed + 1.5 * each)
    assert (tight(x, 1.0) - whole).abs().max() < 1e-6
    with pytest.raises(ArgumentError, match="memory_limit"):
        PSPCSquare(store, 3, memory_limit=each / 2)(x, 1.0)


def test_drawn_supports_are_within_the_error_asked_for(make_store, smooth_images):
    """The jackknife is of the composites, not of the patches that they average."""
    pixels = smooth_images(6020, (3, 12, 12))
    full = PSPCSquare(make_store(pixels[:6000]))
    golden, drawn = GoldDiff(full, AdaptiveSchedule(0.05)), 0
    others = pixels[6000:].float() / 127.5 - 1
    noise = torch.randn(others.shape, generator=torch.Generator().manual_seed(0))
    for sigma in (20.0, 4.0):
        x = others + sigma * noise
        means, errors = golden.estimated(x, sigma)
        off = (means - full(x, sigma)).flatten(1).square().mean(1).sqrt()
        assert (off <= 0.05).sum() >= 18
        drawn += int((errors > 0).sum())
    assert drawn >= 20


def test_a_description_builds_the_same(make_store, smooth_images, queries, tmp_path):
    store = make_store(smooth_images(30, (1, 6, 6)))
    np.save(tmp_path / "maps.npy", np.ones((2, 6, 6, 6, 6), np.float32))
    x = queries(store, 0.5)
    for made in (
        PSPCSquare(store, [(1.0, 3), (0.1, 2)]),
        PSPCFlex(store, (0.4, 0.5), tmp_path / "maps.npy"),
        PSPCFlex(store, np.linspace(0.3, 1, 18)),
        PSPCFlex(store, torch.tensor(0.5)),
    ):
        assert repr(made).startswith(type(made).__name__)
        again = build(json.loads(json.dumps(describe(made))), store)
        assert torch.equal(again(x, 0.5), made(x, 0.5))


@pytest.mark.parametrize(
    ("make", "said"),
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
def test_bad_arguments_are_named(make_store, smooth_images, make, said):
    with pytest.raises(ArgumentError, match=said):
        make(make_store(smooth_images(3, (1, 6, 6))))


def test_other_heatmaps_and_points_are_refused(make_store, smooth_images, tmp_path):
    store, points = make_store(smooth_images(3, (1, 6, 6))), make_store(torch.randn(9, 2))
    for maps in (np.ones((2, 5, 5, 5, 5)), np.ones(3), np.ones((2, 6, 6, 6, 6), np.int64)):
        np.save(tmp_path / "maps.npy", maps)
        with pytest.raises(ArgumentError, match="expected floats"):
            PSPCFlex(store, 0.5, tmp_path / "maps.npy")
    np.save(tmp_path / "maps.npy", np.ones((2, 6, 6, 6, 6)))
    with pytest.raises(ArgumentError, match="thresholds: got 3, expected one, or 2"):
        PSPCFlex(store, (0.5, 0.5, 0.5), tmp_path / "maps.npy")
    for make in (PSPCSquare, PSPCFlex):
        with pytest.raises(ArgumentError, match="needs images"):
            make(points)
