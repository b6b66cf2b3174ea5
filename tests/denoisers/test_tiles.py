"""Tiles with supports of their own: rows in place, and rows read for all tiles at once."""

import numpy as np
import pytest

from golddiff import PCA, ImageStore
from golddiff.estimators import pca
from golddiff.support import Support, TiledSupport
from golddiff.system.residency import in_place

SIGMA = 0.7


@pytest.fixture(scope="module")
def stores(make_store, smooth_images):
    """The same 600 images of 3 x 12 x 12, in place and under a limit of less than they take."""
    store = make_store(smooth_images(600, (3, 12, 12)))
    small = ImageStore.open(store.path, memory_limit=60_000)
    assert in_place(store.flat)
    assert not in_place(small.flat)
    return store, small


@pytest.fixture(scope="module")
def supports():
    """Nine 4x4 tiles' images for two queries: overlapping, one image, log weights."""
    rng = np.random.default_rng(0)
    made = []
    for _ in range(2):
        tiles = []
        for t in range(9):
            count = 1 if t == 4 else int(rng.integers(20, 200))
            rows = np.sort(rng.choice(300 + 30 * t, count, replace=False))
            tiles.append(Support(rows, rng.uniform(0, 3, count) if t % 2 else None))
        made.append(TiledSupport(4, tiles))
    return made


@pytest.mark.parametrize("share", [1 / 4, 20_000 / 1e9, 1e-12])
def test_rows_that_are_read_give_what_rows_in_place_give(stores, supports, monkeypatch, share):
    """A quarter of the limit holds all rows; 20 kB hold 46 of 432 bytes; 1 mB not even one."""
    monkeypatch.setattr(pca, "TILE_ROWS_SHARE", share)
    x = np.random.default_rng(1).standard_normal((2, 432)).astype(np.float32)
    there, read = (PCA(store, 0.05).denoise_over(x, SIGMA, supports) for store in stores)
    assert np.abs(there - read).max() < 1e-5


def test_each_tile_is_the_whole_images_over_its_own_images(stores, supports):
    store, small = stores
    x = np.random.default_rng(2).standard_normal((1, 432)).astype(np.float32)
    made = PCA(small, 0.05).tiled_posterior(x, SIGMA, supports[0]).mean()[0]
    outputs = np.arange(432).reshape(3, 3, 4, 3, 4).transpose(1, 3, 0, 2, 4).reshape(9, 48)
    for tile, own in zip(supports[0].tiles, outputs, strict=True):
        whole = store.posterior(PCA(store, 0.05), x, SIGMA, tile).mean()[0]
        assert np.abs(made[own] - whole[own]).max() < 1e-5
