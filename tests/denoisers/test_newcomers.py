"""Properties specific to SCFDM and NearestImage."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff import SCFDM, AdaptiveSchedule, GoldDiff, NearestImage, Optimal, PaperSchedule
from golddiff.store.nearest import Pixels
from golddiff.supports.index.distances import IndexedBlocks
from golddiff.supports.index.image_index import open_or_build
from golddiff.supports.index.search import NeighborSearch


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(1500, (3, 8, 8)), torch.arange(1500) % 3)


def test_scfdm_without_smoothing_is_optimal(store, queries):
    for sigma in (0.05, 2.0, 40.0):
        x = queries(store, sigma)
        assert (SCFDM(store, 0.0)(x, sigma) - Optimal(store)(x, sigma)).abs().max() < 1e-6


def test_at_low_noise_every_copy_of_scfdm_has_one_image(store, queries):
    x, denoiser = queries(store, 0.01, b=1), SCFDM(store, 1.0, copies=3)
    (source,) = denoiser.attribute(x, 0.01)
    shares = 3 * source.image_weights
    assert np.abs(shares - shares.round()).max() < 1e-6
    assert 1 < (shares > 0.5).sum() <= 3
    assert (source.reconstruct() - denoiser(x, 0.01)[0]).abs().max() < 1e-5


def test_seeds_of_scfdm_differ_less_with_more_copies(store, queries):
    x = queries(store, 1.0)
    few, many = (
        [SCFDM(store, 0.5, copies, seed)(x, 1.0) for seed in (0, 1)] for copies in (4, 400)
    )
    assert (many[0] - many[1]).abs().mean() < 0.3 * (few[0] - few[1]).abs().mean()


def test_adaptive_scfdm_is_within_tol_with_fewer_images(make_store, smooth_images, queries):
    store = make_store(smooth_images(6000, (1, 6, 6)))
    full, golden = (
        SCFDM(store, 0.3),
        GoldDiff(SCFDM(store, 0.3), AdaptiveSchedule(0.05, index=True)),
    )
    for sigma in (0.05, 3.0, 40.0):
        x = queries(store, sigma)
        out, _ = golden.estimated(x, sigma)
        assert (out - full(x, sigma)).flatten(1).square().mean(1).sqrt().max() <= 0.05
    copies = golden.base.noisy(x.reshape(4, -1).numpy(), 40.0)
    of_copies = AdaptiveSchedule(0.05, index=True).fitted(golddiff.Optimal(store))
    for support in of_copies.supports(store, copies, 40.0, None, 0):
        assert len(support) < store.n / 2


def test_a_small_memory_limit_changes_nothing(store, queries):
    x = queries(store, 2.0, b=9)
    low_memory = SCFDM(store, 0.3, memory_limit=300_000)(x, 2.0)
    assert (low_memory - SCFDM(store, 0.3)(x, 2.0)).abs().max() < 1e-6


def test_scfdm_has_no_posterior(store, queries):
    for smoothed in (SCFDM(store), GoldDiff(SCFDM(store))):
        with pytest.raises(golddiff.ArgumentError, match="posterior: not supported by SCFDM"):
            smoothed.posterior(queries(store, 1.0), 1.0)


def test_all_searches_find_the_nearest_image(store, queries):
    index = open_or_build(store)
    metric = IndexedBlocks.of(index, np.ones((1, store.d), np.float32))
    for sigma in (0.05, 0.3):
        x = queries(store, sigma, b=8)
        flat = (x / (1 + sigma**2) ** 0.5).reshape(8, -1).numpy()
        rows = NearestImage(store).nearest(flat * np.float32((1 + sigma**2) ** 0.5), sigma, None)
        nearest = store.nearest(flat, 1, Pixels(), store.everything(None))
        assert [int(support.rows[0]) for support in nearest] == rows.tolist()
        search = NeighborSearch(store, metric, flat, np.arange(store.n), 1.0)
        assert [int(search.rings(i, {0: (0, 1)})[0][0]) for i in range(8)] == rows.tolist()
        golden = GoldDiff(Optimal(store), PaperSchedule()).supports(x, sigma)
        assert all(row in support.rows for row, support in zip(rows, golden, strict=True))


def test_ties_go_to_the_lowest_row(make_store):
    """Permuted pixels and duplicates give more ties than the first comparison handles."""
    pixels = np.random.default_rng(0).integers(0, 256, (1, 1, 6, 6), dtype=np.uint8)
    shuffled = [np.random.default_rng(i).permutation(pixels.ravel()) for i in range(40)]
    far = np.full((5, 1, 6, 6), 255, np.uint8)
    store = make_store(np.concatenate([far, np.reshape(shuffled, (40, 1, 6, 6)), far[:1]]))
    for value in (-0.3, 0.0, 0.123):
        x = torch.full((1, 1, 6, 6), value)
        assert NearestImage(store).nearest(x.reshape(1, -1).numpy(), 0.5, None).tolist() == [5]
    assert NearestImage(store).nearest(np.ones((1, 36), np.float32), 1e-9, None).tolist() == [0]


def test_images_that_float32_cannot_tell_apart_are_compared_exactly(make_store):
    points = np.zeros((40, 3), np.float32)
    points[:, 0], points[:, 1] = 1, np.linspace(2e-4, 1e-5, 40)  # 1 + t^2 rounds to 1
    assert NearestImage(make_store(points)).nearest(np.zeros((1, 3), np.float32), 1.0, None) == 39


def test_nearest_image_with_labels_is_of_the_class(store, queries):
    x = queries(store, 0.2)
    images = store.images()
    for i, nearest in enumerate(NearestImage(store)(x, 0.2, labels=[0, 1, 2, 0])):
        row = int((images - nearest).flatten(1).square().sum(1).argmin())
        assert (row % 3, bool((images[row] == nearest).all())) == (i % 3, True)
