"""PCA over tiled supports: rows resident in memory, and rows read for all tiles at once."""

import numpy as np
import pytest

from golddiff import PCA, ImageStore
from golddiff.estimators import pca
from golddiff.support import Support, TiledSupport

SIGMA = 0.7


@pytest.fixture(scope="module")
def stores(make_store, smooth_images):
    """600 images of 3 x 12 x 12, opened without a limit and with one below their size."""
    store = make_store(smooth_images(600, (3, 12, 12)))
    small = ImageStore.open(store.path, memory_limit=60_000)
    assert store.residency.fits(store.flat.nbytes)
    assert not small.residency.fits(small.flat.nbytes)
    return store, small


@pytest.fixture(scope="module")
def supports():
    """Tiled supports of two queries, nine 4x4 tiles each; tile 4 holds one image."""
    rng = np.random.default_rng(0)
    queries = []
    for _ in range(2):
        tiles = []
        for t in range(9):
            count = 1 if t == 4 else int(rng.integers(20, 200))
            rows = np.sort(rng.choice(300 + 30 * t, count, replace=False))
            tiles.append(Support(rows, rng.uniform(0, 3, count) if t % 2 else None))
        queries.append(TiledSupport(4, tiles))
    return queries


@pytest.mark.parametrize("share", [1 / 4, 20_000 / 1e9, 1e-12])
def test_resident_rows_and_rows_read_from_disk_agree(stores, supports, monkeypatch, share):
    """A quarter of the limit holds all rows; 20 kB hold 46 of 432 bytes; 1 mB not even one."""
    monkeypatch.setattr(pca, "TILE_ROWS_SHARE", share)
    x = np.random.default_rng(1).standard_normal((2, 432)).astype(np.float32)
    resident, read = (PCA(store, 0.05).denoise_over(x, SIGMA, supports) for store in stores)
    assert np.abs(resident - read).max() < 1e-5


def test_each_tile_equals_the_whole_image_posterior_over_its_support(stores, supports):
    store, small = stores
    x = np.random.default_rng(2).standard_normal((1, 432)).astype(np.float32)
    tiled = PCA(small, 0.05).tiled_posterior(x, SIGMA, supports[0]).mean()[0]
    outputs = np.arange(432).reshape(3, 3, 4, 3, 4).transpose(1, 3, 0, 2, 4).reshape(9, 48)
    for tile, own in zip(supports[0].tiles, outputs, strict=True):
        whole = store.posterior(PCA(store, 0.05), x, SIGMA, tile).mean()[0]
        assert np.abs(tiled[own] - whole[own]).max() < 1e-5
