"""PCA with ``share``: one softmax for several output values."""

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_limits

import golddiff
from golddiff.estimators.dial import at_threshold
from golddiff.estimators.masks import locality_mask, outputs_of, unit_counts
from golddiff.estimators.seamless import LAMBDA
from golddiff.estimators.shared import UnitMasks, units_of
from golddiff.system.errors import ArgumentError

SIDES = {"pixel": 1, "2x2": 2, "4x4": 4}
SIGMAS = (0.01, 0.3, 1.0, 5.0, 60.0)


def mask_shares(store, sigma, threshold, unit):
    """Share of each unit's masks that hold an input, (D, U); large units use every fifth mask."""
    w = np.abs(store.factor().wiener_matrix(sigma))
    m = w / np.where(w.diagonal() < 1e-6, 1, w.diagonal())[:, None]
    groups = [np.flatnonzero(unit == u) for u in np.unique(unit)]
    if max(map(len, groups)) >= 16:
        groups = [group[::5] for group in groups]
    mask = m >= threshold * (1 - 1e-7) * m[:, np.concatenate(groups)].max()
    return np.stack([mask[:, group].mean(axis=1) for group in groups], axis=1)


def reference_mean(store, x, sigma, threshold, side, rows=None):
    """softmax_i(mean over the unit's values of -M_q . (x - x_i)^2 / (2 sigma^2)), in float64."""
    shape = store.shape if len(store.shape) == 3 else (1, 1, store.d)
    images = store.values(store.rows_of(None) if rows is None else rows).astype(np.float64)
    _, height, width = shape
    y, column = np.divmod(np.arange(store.d) % (height * width), width)
    unit = y // side * width + column // side
    masks = mask_shares(store, sigma, threshold, unit)
    out = np.empty((len(x), store.d))
    for i, query in enumerate(x.flatten(1).double().numpy()):
        squares = (images - query) ** 2
        for u, mask in zip(np.unique(unit), masks.T, strict=True):
            members = np.flatnonzero(unit == u)
            logits = -(squares @ mask) / (2 * sigma**2)
            weights = np.exp(logits - logits.max())
            out[i, members] = weights / weights.sum() @ images[:, members]
    return torch.from_numpy(out).reshape(x.shape)


@pytest.fixture(scope="module", params=[(3, 8, 8), (1, 7, 6), (5,)])
def store(request, make_store, smooth_images):
    if len(request.param) == 3:
        return make_store(smooth_images(60, request.param))
    points = np.random.default_rng(0).standard_normal((60, *request.param)).astype(np.float32)
    return make_store(points)


@pytest.mark.parametrize("share", SIDES)
@pytest.mark.parametrize("sigma", SIGMAS)
def test_it_equals_the_float64_equation(store, queries, share, sigma):
    x = queries(store, sigma)
    mean = golddiff.PCA(store, 0.05, share=share)(x, sigma)
    expected = reference_mean(store, x, sigma, 0.05, SIDES[share])
    assert (mean - expected).abs().max() < 2e-4


def test_seamless_logits_are_interpolated_between_units_of_4x4(
    make_store, smooth_images, queries, monkeypatch
):
    monkeypatch.setattr("golddiff.estimators.masks.EVERY", 1)
    store = make_store(smooth_images(60, (2, 9, 12)))
    x, sigma = queries(store, 0.5), 0.5
    mask = locality_mask(store.factor(), sigma, 0.05).astype(np.float64).reshape(-1, 2, 9, 12)
    units = torch.nn.functional.avg_pool2d(
        torch.from_numpy(mask).mean(1, keepdim=True), 4, ceil_mode=True, count_include_pad=False
    )
    # Upsampled fourfold and cropped to the image.
    large = torch.nn.functional.interpolate(units, scale_factor=4, mode="bilinear")
    shares = large[:, 0, :9, :12].flatten(1).numpy()
    rows = store.rows_of(None)
    images = store.values(rows).astype(np.float64)
    pca = golddiff.PCA(store, 0.05, share="seamless")
    assert np.abs(pca.relevance(sigma) - shares.mean(axis=1)).max() < 1e-6
    units = pca.ready(sigma)
    for query in x.flatten(1).numpy():
        logits = -((images - query) ** 2 @ shares).T / (2 * sigma**2)
        found = units.logits_of(store, query, sigma, None)(rows)
        assert np.abs(found - logits).max() < 1e-5 * np.abs(logits).max()


def test_wss_is_the_average_of_batch_means(store, queries):
    x = queries(store, 0.5)
    mean = golddiff.PCA(store, 0.05, "wss", batch_size=30, share="pixel")(x, 0.5)
    halves = [reference_mean(store, x, 0.5, 0.05, 1, rows) for rows in np.split(np.arange(60), 2)]
    assert (mean - sum(halves) / 2).abs().max() < 2e-4


def test_unit_counts_equal_the_sums_of_masks(store, monkeypatch):
    thresholds = np.array([0.0, 0.01, 0.1, 0.5])
    unit = np.arange(store.d) // 2
    masks = [locality_mask(store.factor(), 0.7, t) for t in thresholds]
    expected = [[m[:, unit == u].sum(axis=1) for u in range(unit.max() + 1)] for m in masks]
    for limit in (1 << 30, 0):  # the whole matrix in memory, or a few rows at a time
        monkeypatch.setattr("golddiff.estimators.masks.HELD_BYTES", limit)
        counts = unit_counts(store.factor(), 0.7, thresholds, unit)
        assert np.array_equal(counts, np.array(expected).transpose(0, 2, 1))


def test_large_units_average_the_masks_of_every_fifth_value(make_store, smooth_images, monkeypatch):
    store = make_store(smooth_images(60, (3, 8, 8)))
    unit = np.tile(np.arange(8)[:, None] // 4 * 2 + np.arange(8) // 4, (3, 1, 1)).ravel()
    outputs = outputs_of(unit)
    assert outputs.shape == (10, 4)  # of 48
    assert (unit[outputs] == np.arange(4)).all()
    # All columns, rows and channels.
    for pixels in (outputs % 8 % 4, outputs // 8 % 8 % 4, outputs // 64):
        assert len(np.unique(pixels)) == (4 if pixels.max() == 3 else 3)
    for limit in (1 << 30, 0):
        monkeypatch.setattr("golddiff.estimators.masks.HELD_BYTES", limit)
        for threshold in (0.0, 0.02, 0.3):
            (counts,) = unit_counts(store.factor(), 0.7, np.array([threshold]), unit)
            assert np.allclose(counts / 10, mask_shares(store, 0.7, threshold, unit))


@pytest.mark.parametrize(
    ("side", "masks", "width"), [(32, 10, 4), (36, 4, 4), (62, 4, 4), (64, 4, 4), (128, 4, 8)]
)
def test_units_of_pictures_above_32_pixels_use_four_masks(side, masks, width):
    units = -(-side // width)
    unit = units_of((3, side, side), "seamless")
    outputs = outputs_of(unit)
    assert outputs.shape == (masks, units**2)
    assert ((outputs < 0) | (unit[outputs] == np.arange(units**2))).all()
    assert (outputs[0] >= 0).all()
    assert np.unique(outputs[outputs >= 0] // side**2).tolist() == [0, 1, 2]


def test_grey_photographs_are_seamless_and_black_backgrounds_are_not(make_store, smooth_images):
    """Regression: photographs in black and white were covered with speckle."""
    images = smooth_images(40, (1, 16, 16))
    assert at_threshold(make_store(images), 0.1).base.share == "seamless"
    images[..., :8] = 0
    assert at_threshold(make_store(images), 0.1).base.share == "pixel"
    assert at_threshold(make_store(images.repeat(1, 3, 1, 1)), 0.1).base.share == "seamless"


def test_an_unknown_share_is_refused(store):
    with pytest.raises(
        ArgumentError, match="share: got '3x3', expected 'pixel', '2x2', '4x4', 'seamless'"
    ):
        golddiff.PCA(store, share="3x3")


def test_masks_that_do_not_fit_in_memory_are_refused(
    make_store, smooth_images, queries, monkeypatch
):
    store = make_store(smooth_images(20, (3, 16, 16)))
    monkeypatch.setattr("golddiff.system.memory.free_memory", lambda: 5 * 768 * 256 - 1.0)
    with pytest.raises(ArgumentError, match="memory: the masks of images of 768 values would take"):
        golddiff.PCA(store, share="pixel")(queries(store, 1.0), 1.0)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("share", ["pixel", "2x2", "seamless"])
def test_results_do_not_depend_on_batch_threads_or_memory(
    make_store, smooth_images, queries, share
):
    store = make_store(smooth_images(1000, (1, 16, 16)))
    schedule = golddiff.PaperSchedule(variant="released")
    x = queries(store, 0.7)
    with threadpool_limits(2, user_api="blas"):
        for wrapped in (lambda pca: pca, lambda pca: golddiff.GoldDiff(pca, schedule)):
            denoiser = wrapped(golddiff.PCA(store, share=share))
            mean = denoiser(x, 0.7)
            little_memory = wrapped(golddiff.PCA(store, memory_limit=1, share=share))
            assert torch.equal(little_memory(x, 0.7), mean)
            assert torch.equal(torch.cat([denoiser(query[None], 0.7) for query in x]), mean)
            torch.set_num_threads(1)
            assert torch.equal(denoiser(x, 0.7), mean)
            torch.set_num_threads(2)


def test_a_description_keeps_the_share(store):
    from golddiff.estimators.describe import build, describe

    rebuilt = build(describe(golddiff.PCA(store, share="4x4")), store)
    assert rebuilt.share == "4x4"


def test_unit_masks_of_large_images_use_a_factor_of_a_sample(
    make_store, smooth_images, monkeypatch
):
    monkeypatch.setattr("golddiff.store.factors.LARGE", 100)
    monkeypatch.setattr("golddiff.store.factors.SAMPLE_SIZE", 40)
    store = make_store(smooth_images(90, (3, 8, 8)))
    sampled = store.factors.averaged()
    assert sampled.images == 40
    assert store.factor().images == 90
    masks = golddiff.PCA(store, 0.05, share="4x4").ready(0.7)
    (counts,) = unit_counts(sampled, 0.7, np.array([0.05]), units_of(store.shape, "4x4"))
    expected = UnitMasks.of_counts(counts, store.shape, "4x4")
    assert np.array_equal(masks.shares, expected.shares)


@pytest.fixture(scope="module")
def pictures(make_store, smooth_images):
    return make_store(smooth_images(60, (3, 9, 12)))


@pytest.mark.parametrize("sigma", [0.05, 0.5, 5.0])
def test_seamless_fits_values_and_differences_by_least_squares(pictures, queries, sigma):
    """The reference solves dense normal equations in float64 with the tested weights."""
    x = queries(pictures, sigma)
    shape, d = pictures.shape, pictures.d
    values = pictures.values(np.arange(60)).astype(np.float64)
    units = golddiff.PCA(pictures, 0.05, share="seamless").ready(sigma)
    at = np.arange(d).reshape(shape)
    rows = [(at[:, :-1].ravel(), at[:, 1:].ravel()), (at[..., :-1].ravel(), at[..., 1:].ravel())]
    ends = [np.concatenate(side) for side in zip(*rows, strict=True)]
    gradient = np.zeros((len(ends[0]), d))
    gradient[np.arange(len(ends[0])), ends[0]] = -1
    gradient[np.arange(len(ends[0])), ends[1]] = 1
    out = golddiff.PCA(pictures, 0.05, share="seamless")(x, sigma)
    for image, query in zip(out, x, strict=True):
        logits = units.logits_of(pictures, query.numpy().ravel(), sigma, None)(np.arange(60))
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        weights = np.tile(weights / weights.sum(axis=1, keepdims=True), (3, 1))  # (D, k)
        m = (weights * values.T).sum(axis=1)
        g = (weights[ends[0]] * (values @ gradient.T).T).sum(axis=1)
        normal = LAMBDA * np.eye(d) + gradient.T @ gradient
        expected = np.linalg.solve(normal, LAMBDA * m + gradient.T @ g)
        assert np.abs(image.numpy().ravel() - expected).max() < 2e-4


def test_a_single_image_is_the_seamless_output(make_store, smooth_images, queries):
    store = make_store(smooth_images(1, (3, 9, 12)))
    out = golddiff.PCA(store, 0.05, share="seamless")(store.images([0]) + 0.1, 0.5)
    assert torch.allclose(out, store.images([0]), atol=1e-5)


def test_a_value_is_in_its_own_mask_where_another_hardly_varies(make_store, smooth_images):
    """Divided by a tiny W_nn, one row of the matrix is above all thresholds of the others."""
    images = smooth_images(60, (1, 6, 6), seed=4)
    images[:, 0, 0, 0] = 0
    images[7, 0, 0, 0] = 1
    store, sigma, threshold = make_store(images), 0.05, 0.1
    w = np.abs(store.factor().wiener_matrix(sigma))
    assert 1e-6 < w[0, 0] < 1e-3
    assert (w / w.diagonal()[:, None]).max() > 1 / threshold
    mask = locality_mask(store.factor(), sigma, threshold)
    assert mask.diagonal().all()
    assert not mask.all()
    for share in ("pixel", "2x2"):
        unit = units_of(store.shape, share)
        (counts,) = unit_counts(store.factor(), sigma, np.array([threshold]), unit)
        expected = [mask[:, unit == u].sum(axis=1) for u in np.unique(unit)]
        assert np.array_equal(counts, np.stack(expected, axis=1))
    noise = sigma * torch.randn(4, 1, 6, 6, generator=torch.Generator().manual_seed(0))
    for share in (None, "pixel"):
        denoised = golddiff.PCA(store, threshold, share=share)(
            store.images(range(4)) + noise, sigma
        )
        assert (denoised - store.images(range(4))).square().mean().sqrt() < 2 * sigma
