"""Mean, covariance and masks of all shards: made once, kept, and the single store's."""

import numpy as np
import pytest

import golddiff
from golddiff.estimators import kept_masks
from golddiff.store.images import ImageStore
from golddiff.store.statistics import covariance_factor, factor_rows

SIGMA = 1.0


def test_a_factor_is_of_the_images_that_a_single_stores_is_of(two, digits, tmp_path, monkeypatch):
    rows = factor_rows(digits.rows_of(None), digits.d, 300, 5)
    expected = covariance_factor(digits.stored, rows)
    monkeypatch.setattr(two.artifacts, "folder", tmp_path)
    whole = golddiff.PCA(two).denoise(np.ones((1, two.d), np.float32), 1.0, None)
    seen = []
    factor = two.factors.estimate(300, 5, seen.append)
    assert factor.images == 300
    assert seen == [300]
    np.testing.assert_allclose(factor.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(factor.eigenvalues, expected.eigenvalues, atol=1e-12)
    # The shards weigh with it, and what is kept is found again.
    other = golddiff.PCA(two).denoise(np.ones((1, two.d), np.float32), 1.0, None)
    assert np.abs(other - whole).max() > 1e-4
    assert golddiff.Wiener(two)(two.images([0]), 1.0).isfinite().all()
    two.factors._computed.clear()
    assert two.factors.is_saved()
    assert two.factors.images == 300
    assert two.factors._computed == {}  # a gigabyte and more at 64 x 64, not read for this
    assert two.factor().images == 300
    with pytest.raises(golddiff.ArgumentError, match="images: got 1"):
        two.factors.estimate(1)
    # All of them again, for those shards too that have weighed with the other.
    assert two.factors.estimate(two.n).images == two.n
    again = golddiff.PCA(two).denoise(np.ones((1, two.d), np.float32), 1.0, None)
    np.testing.assert_allclose(again, whole, atol=1e-6)


def test_masks_are_made_once_beside_the_list(coloured, patches):
    made = kept_masks.tree_of(coloured, SIGMA, 0.02)
    single = kept_masks.tree_of(patches, SIGMA, 0.02)
    np.testing.assert_array_equal(made.inputs, single.inputs)
    assert coloured.artifacts.path(kept_masks.name_of(SIGMA, 0.02)).is_file()
    assert kept_masks.load(coloured, SIGMA, 0.02) is not None
    golddiff.PCA(coloured).denoise(np.ones((1, coloured.d), np.float32), SIGMA, None)
    for path in coloured.paths:  # no shard makes any: they are given
        shard = ImageStore.open(path)
        assert not shard.artifacts.path(kept_masks.name_of(SIGMA, 0.02)).is_file()


def test_masks_of_units_are_made_once_beside_the_list(coloured, patches, monkeypatch):
    def shares(store):
        return golddiff.PCA(store, share="4x4").ready(SIGMA).shares

    made = shares(coloured)
    np.testing.assert_array_equal(made, shares(patches))
    monkeypatch.setattr(kept_masks, "unit_counts", None)
    np.testing.assert_array_equal(shares(coloured), made)


def test_shards_may_be_larger_than_memory(coloured, patches, queries):
    x = queries(patches, SIGMA, 1)
    for make in (golddiff.PCA, lambda s: golddiff.GoldDiff(golddiff.Optimal(s))):
        assert (make(coloured)(x, SIGMA) - make(patches)(x, SIGMA)).abs().max() < 1e-5
    assert coloured.factor().images == patches.n
