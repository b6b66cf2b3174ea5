"""Mean, covariance and masks over shards equal the single store's; they are computed once."""

import numpy as np
import pytest

import golddiff
from golddiff.estimators import masks
from golddiff.store.images import ImageStore
from golddiff.store.statistics import covariance_factor, factor_rows

SIGMA = 1.0


def test_a_factor_estimated_from_a_sample(split_digits, digits, tmp_path, monkeypatch):
    store = split_digits
    rows = factor_rows(digits.rows_of(None), digits.d, 300, 5)
    expected = covariance_factor(digits.stored, rows)
    monkeypatch.setattr(store.artifacts, "folder", tmp_path)
    whole = golddiff.PCA(store).denoise(np.ones((1, store.d), np.float32), 1.0, None)
    progress = []
    factor = store.factors.estimate(300, 5, progress.append)
    assert factor.images == 300
    assert progress == [300]
    np.testing.assert_allclose(factor.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(factor.eigenvalues, expected.eigenvalues, atol=1e-12)
    # The shards use the new factor, and the saved file is found.
    from_sample = golddiff.PCA(store).denoise(np.ones((1, store.d), np.float32), 1.0, None)
    assert np.abs(from_sample - whole).max() > 1e-4
    assert golddiff.Wiener(store)(store.images([0]), 1.0).isfinite().all()
    store.factors._computed.clear()
    assert store.factors.is_saved()
    assert store.factor().images == 300
    with pytest.raises(golddiff.ArgumentError, match="images: got 1"):
        store.factors.estimate(1)
    # A factor of all images also replaces the other one in the shards.
    assert store.factors.estimate(store.n).images == store.n
    restored = golddiff.PCA(store).denoise(np.ones((1, store.d), np.float32), 1.0, None)
    np.testing.assert_allclose(restored, whole, atol=1e-6)


def test_masks_are_saved_beside_the_list_of_shards(split_patches, patches):
    tree = masks.tree_of(split_patches, SIGMA, 0.02)
    expected = masks.tree_of(patches, SIGMA, 0.02)
    np.testing.assert_array_equal(tree.inputs, expected.inputs)
    assert split_patches.artifacts.path(masks.name_of(SIGMA, 0.02)).is_file()
    assert masks.load(split_patches, SIGMA, 0.02) is not None
    golddiff.PCA(split_patches).denoise(np.ones((1, split_patches.d), np.float32), SIGMA, None)
    for path in split_patches.paths:  # shards receive the masks and compute none
        shard = ImageStore.open(path)
        assert not shard.artifacts.path(masks.name_of(SIGMA, 0.02)).is_file()


def test_masks_of_units_are_computed_once(split_patches, patches, monkeypatch):
    def shares(store):
        return golddiff.PCA(store, share="4x4").ready(SIGMA).shares

    computed = shares(split_patches)
    np.testing.assert_array_equal(computed, shares(patches))
    monkeypatch.setattr(masks, "unit_counts", None)
    np.testing.assert_array_equal(shares(split_patches), computed)
