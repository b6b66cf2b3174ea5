"""Coordinates of blocks, against a direct projection."""

import math

import numpy as np
import pytest

from golddiff.supports.index import blocks

SHAPES = [(3, 20, 20), (1, 28, 28), (2, 7, 9), (3, 31, 29), (5,)]


def projection_matrix(shape, fit):
    """The projection (B q, D) onto the coordinates of all blocks as one matrix."""
    d = math.prod(shape)
    matrix = []
    if len(shape) != 3:
        block_columns = [[i] for i in range(d)]
    else:
        c, h, w = shape
        block_h, block_w = (max(s for s in range(1, 9) if side % s == 0) for side in (h, w))
        block_columns = [
            [k * h * w + i * w + j for k in range(c) for i in range(a, a + block_h)
             for j in range(b, b + block_w)]
            for a in range(0, h, block_h) for b in range(0, w, block_w)
        ]  # fmt: skip
    for block in block_columns:
        for direction in fit.basis:
            row = np.zeros(d)
            row[block] = direction
            matrix.append(row)
    return np.array(matrix)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_blocks_together_are_an_orthonormal_projection(shape):
    sample = np.random.default_rng(0).standard_normal((300, math.prod(shape))).astype(np.float32)
    fit = blocks.fitted(shape, sample)
    matrix = projection_matrix(shape, fit)
    assert len(matrix) == blocks.numbers_of(shape)
    assert np.allclose(matrix @ matrix.T, np.eye(len(matrix)), atol=1e-5)
    assert np.allclose(fit.project(sample[:2]), sample[:2] @ matrix.T, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_stored_coordinates_are_within_half_a_step_of_the_exact_ones(shape):
    sample = np.random.default_rng(1).uniform(-1, 1, (50, math.prod(shape))).astype(np.float32)
    fit = blocks.fitted(shape, sample)
    stored, lengths = fit.compress(sample)
    decoded = (stored.astype(np.float64) - blocks.MIDDLE) * fit.unit
    matrix, values = projection_matrix(shape, fit), sample.astype(np.float64)
    exact = values @ matrix.T
    assert (np.abs(decoded - exact) <= 0.5001 * fit.unit + 1e-5).all()
    assert np.allclose(lengths[:, 0], np.linalg.norm(values - exact @ matrix, axis=1), atol=2e-2)
    assert np.allclose(lengths[:, 1], np.linalg.norm(decoded - exact, axis=1), atol=1e-4)
    stored, lengths = fit.compress(10 * sample)  # beyond the range of the fit
    decoded = (stored.astype(np.float64) - blocks.MIDDLE) * fit.unit
    assert np.allclose(lengths[:, 1], np.linalg.norm(decoded - 10 * exact, axis=1), rtol=1e-3)


def test_the_basis_holds_the_largest_sum_of_squares():
    """Against a singular value decomposition of all blocks of the sample."""
    rng = np.random.default_rng(2)
    sample = np.cumsum(rng.standard_normal((400, 3 * 16 * 16)), axis=1).astype(np.float32)
    fit = blocks.fitted((3, 16, 16), sample)
    stacked = np.concatenate([sample[:, c] for c in fit.columns]).astype(np.float64)
    largest = (np.linalg.svd(stacked, compute_uv=False)[: len(fit.basis)] ** 2).sum()
    assert ((stacked @ fit.basis.T) ** 2).sum() == pytest.approx(largest, rel=1e-4)


def test_zero_images_have_zero_coordinates_and_lengths():
    fit = blocks.fitted((1, 8, 8), np.zeros((3, 64), np.float32))
    stored, lengths = fit.compress(np.zeros((3, 64), np.float32))
    assert (stored == blocks.MIDDLE).all()
    assert not lengths.any()
    assert fit.unit > 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda t: t.pop("unit"),
        lambda t: t.update(unit=np.zeros_like(t["unit"])),
        lambda t: t.update(unit=t["unit"].astype(np.float32)),
        lambda t: t.update(basis=t["basis"][:, 1:]),
        lambda t: t.update(basis=t["basis"] * np.float32("nan")),
    ],
)
def test_damaged_tensors_are_refused(damage):
    tensors = blocks.fitted((1, 8, 8), np.ones((3, 64), np.float32)).tensors()
    assert blocks.of_tensors((1, 8, 8), dict(tensors)).basis.shape == tensors["basis"].shape
    damage(tensors)
    with pytest.raises((ValueError, KeyError)):
        blocks.of_tensors((1, 8, 8), tensors)
