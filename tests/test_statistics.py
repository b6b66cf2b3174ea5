"""The factor of a covariance is exact for any number of images and values."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.stored import Stored
from golddiff.store import statistics
from golddiff.store.statistics import covariance_factor, moments


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks and chunks so small that few values and images need several, the last partial."""
    monkeypatch.setattr(statistics, "SIDE", 5)
    monkeypatch.setattr(statistics, "CHUNK", 7)


def covariance_of(factor):
    return (factor.eigenvectors * factor.eigenvalues) @ factor.eigenvectors.T


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize(("n", "d"), [(40, 13), (40, 1), (14, 13), (13, 13), (5, 13), (2, 3)])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.usefixtures("small_blocks")
def test_the_factor_computed_in_blocks_is_the_unbiased_covariance(n, d, dtype, autocast):
    flat = np.random.default_rng(n).integers(0, 256, (n, d)).astype(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        factor = covariance_factor(Stored(flat, 1 / 127.5, -1.0))
    images = flat.astype(np.float64) / 127.5 - 1
    assert np.abs(factor.mean - images.mean(0)).max() < 1e-12
    assert np.abs(covariance_of(factor) - np.atleast_2d(np.cov(images.T))).max() < 1e-12
    assert np.all(np.diff(factor.eigenvalues) <= 0)
    assert factor.eigenvalues.min() > 0
    gram = factor.eigenvectors.T @ factor.eigenvectors
    assert np.abs(gram - np.eye(len(gram))).max() < 1e-12
    assert factor.eigenvectors.flags.c_contiguous


@pytest.mark.parametrize("n", [5, 40])
def test_directions_of_little_variance_are_kept(n):
    values = np.random.default_rng(0).normal(size=(n, 13)) / 10.0 ** np.arange(13)
    factor = covariance_factor(Stored(values.astype(np.float32)))
    images = values.astype(np.float32).astype(np.float64)
    assert np.abs(covariance_of(factor) - np.cov(images.T)).max() < 1e-12
    assert (np.diff(np.log10(factor.eigenvalues)) < -1).all()


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("cuts", [[], [0, 9], [20, 20, 33]])
@pytest.mark.usefixtures("small_blocks")
def test_moments_of_parts_add_up(dtype, cuts):
    flat = np.random.default_rng(0).integers(0, 256, (40, 13)).astype(dtype)
    whole = covariance_factor(Stored(flat, 1 / 127.5, -1.0))
    parts = [moments(flat, rows) for rows in np.split(np.arange(40), cuts)]
    merged = parts[0]
    for part in parts[1:]:
        merged = merged.merge(part)
    factor = merged.factor(1 / 127.5, -1.0)
    assert factor.images == 40
    assert np.abs(factor.mean - whole.mean).max() < 1e-12
    assert np.abs(covariance_of(factor) - covariance_of(whole)).max() < 1e-12


def test_moments_of_no_images_have_no_factor():
    with pytest.raises(ZeroDivisionError):
        moments(np.empty((0, 3), np.uint8), np.arange(0)).factor(1 / 127.5, -1.0)


@pytest.mark.parametrize("n", [1, 30])
def test_the_factor_of_constant_images_has_no_eigenvectors(n):
    factor = covariance_factor(Stored(np.full((n, 6), 200, np.uint8), 1 / 127.5, -1.0))
    assert factor.eigenvectors.shape == (6, 0)
    assert np.array_equal(factor.wiener_matrix(1.0), np.zeros((6, 6)))


@given(st.integers(1, 23), st.floats(1e-3, 1e2), st.sampled_from([1, 4, 512]))
def test_the_wiener_matrix_is_symmetric_and_follows_its_definition(d, sigma, side):
    generator = np.random.default_rng(d)
    flat = generator.integers(0, 256, (d + 3, d)).astype(np.uint8)
    factor = covariance_factor(Stored(flat, 1 / 127.5, -1.0))
    covariance = np.atleast_2d(np.cov((flat / 127.5 - 1).T))
    expected = covariance @ np.linalg.inv(covariance + sigma**2 * np.eye(d))
    default_side, statistics.SIDE = statistics.SIDE, side
    try:
        matrix = factor.wiener_matrix(sigma)
        matrix_float32 = factor.wiener_matrix(sigma, np.float32)
    finally:
        statistics.SIDE = default_side
    assert np.array_equal(matrix, matrix.T)
    assert np.abs(matrix - expected).max() < 1e-7
    assert matrix_float32.dtype == np.float32
    assert np.abs(matrix_float32 - matrix).max() < 1e-5
