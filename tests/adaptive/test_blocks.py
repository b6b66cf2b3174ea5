"""Comparing by blocks: the mean logits of tiles, with masks' shares averaged over blocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from golddiff import PCA
from golddiff.adaptive.blocks import BlockRanking
from golddiff.kernels.block_squares import block_grid, block_of_each, block_squares
from golddiff.kernels.mask_tiles import OfChannel

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 13), st.integers(1, 13))


@given(SHAPES, st.booleans(), st.integers(0, 99))
def test_block_squares_are_sums_of_squares(shape, stored_as_bytes, seed):
    generator = np.random.default_rng(seed)
    d = int(np.prod(shape))
    flat = generator.integers(0, 256, (9, d)).astype(np.uint8 if stored_as_bytes else np.float32)
    x, rows = generator.standard_normal(d).astype(np.float32), np.array([7, 0, 3])
    made = block_squares(flat, rows, x, shape, 1 / 127.5, -1.0)
    squares = (flat[rows] / 127.5 - 1.0 - x) ** 2
    expected = np.zeros((3, int(np.prod(block_grid(shape)))))
    np.add.at(expected.T, block_of_each(shape), squares.T)
    assert np.allclose(made, expected.T, rtol=1e-5)


def test_shares_that_are_equal_within_blocks_give_the_mean_logits(make_store, smooth_images):
    store = make_store(smooth_images(700, (3, 12, 12)))
    generator = np.random.default_rng(0)
    shares = generator.random((5, int(np.prod(block_grid(store.shape)))))
    relevance = shares[:, block_of_each(store.shape)].astype(np.float32)
    rows = np.arange(10, 650)
    x = generator.standard_normal(store.d).astype(np.float32)
    ranking = BlockRanking(store, relevance, rows)
    exact = relevance.astype(np.float64) @ ((store.values(rows).astype(np.float64) - x) ** 2).T
    assert np.allclose(ranking.distances(x), exact, rtol=1e-5)
    assert np.allclose(ranking.distances(x, [3, 1]), exact[[3, 1]], rtol=1e-5)


def test_they_follow_the_mean_logits_of_real_masks(make_store, smooth_images):
    store = make_store(smooth_images(700, (3, 16, 16)))
    generator = np.random.default_rng(0)
    x = store.values(np.array([3]))[0] + generator.standard_normal(store.d).astype(np.float32)
    relevance = PCA(store, 0.05).relevance(1.0, OfChannel(8))
    made = BlockRanking(store, relevance, np.arange(store.n)).distances(x)
    exact = relevance @ ((store.values(np.arange(store.n)) - x) ** 2).T
    for one, other in zip(made, exact, strict=True):
        assert np.corrcoef(one, other)[0, 1] > 0.95
