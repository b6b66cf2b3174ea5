"""A mask tree restores its mask; cut into tiles, it gives the same posterior as the whole tree."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.mask_tree import (
    additions,
    dense_mask,
    mean_mask,
    tile_trees,
    tree_from_additions,
)
from golddiff.kernels.pca_cpu import add_resident, masked_posterior
from golddiff.kernels.stored import Stored
from golddiff.posterior import Posterior
from golddiff.support import OfChannel, Support, tile_count, tile_of_each

SIDES = st.sampled_from([2, 4, 8, 16, OfChannel(4), OfChannel(8)])
SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 13), st.integers(1, 13))


def mask_tree(mask, shape):
    return tree_from_additions(additions(mask, shape), shape)


def random_mask(shape, density, seed):
    d = int(np.prod(shape))
    mask = np.random.default_rng(seed).random((d, d)) < density
    # Neighbouring outputs share inputs, as in real masks; otherwise tiles would be empty.
    mask |= np.roll(mask, 1, axis=1) | np.roll(mask, shape[2], axis=1)
    mask[np.arange(d), np.arange(d)] = True
    return mask


@given(SHAPES, SIDES, st.floats(0, 0.9), st.integers(0, 99))
def test_tiles_over_one_support_give_the_posterior_of_the_whole_tree(shape, side, density, seed):
    generator = np.random.default_rng(seed)
    d = int(np.prod(shape))
    mask = random_mask(shape, density, seed)
    tree = mask_tree(mask, shape)
    flat = generator.integers(0, 256, (90, d)).astype(np.uint8)
    rows, x = np.arange(3, 80), generator.standard_normal((2, d)).astype(np.float32)
    arguments = (Stored(flat, 1 / 127.5, -1.0), Support(rows), x, 1.5)
    whole = masked_posterior(*arguments, tree)
    sums = Posterior.empty(2, d, d, np.float32)
    for tile in tile_trees(tree, shape, side):
        add_resident(*arguments, tile, sums)
    assert np.abs(sums.in_float64().mean() - whole.mean()).max() < 1e-5


@given(SHAPES, SIDES, st.floats(0, 0.9), st.integers(0, 99))
def test_tiles_hold_each_output_once_and_mean_masks_are_exact(shape, side, density, seed):
    mask = random_mask(shape, density, seed)
    d = len(mask)
    tree = mask_tree(mask, shape)
    tiles = tile_of_each(shape, side)
    trees = tile_trees(tree, shape, side)
    assert len(trees) == tile_count(shape, side)
    for number, tile in enumerate(trees):
        outputs = np.flatnonzero(tiles == number)
        assert np.array_equal(np.sort(tile.output[tile.output >= 0]), outputs)
        assert np.allclose(mean_mask(tile, d), mask[:, outputs].mean(axis=1))
    assert np.allclose(mean_mask(tree, d), mask.mean(axis=1))


@pytest.mark.parametrize("shape", [(3, 4, 5), (1, 9, 8), (30,)])
def test_a_mask_tree_restores_its_mask(shape):
    d = int(np.prod(shape))
    mask = np.random.default_rng(0).random((d, d)) < 0.3
    np.testing.assert_array_equal(dense_mask(mask_tree(mask, shape), d), mask)
