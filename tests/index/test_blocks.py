"""Blocks' coordinates, against a direct projection."""

import math

import numpy as np
import pytest

from golddiff.supports.index import blocks

SHAPES = [(3, 20, 20), (1, 28, 28), (2, 7, 9), (3, 31, 29), (5,)]


def direct(shape, fit):
    """The rows (B q, D) of all blocks as one matrix, from their places in the image."""
    d = math.prod(shape)
    rows = []
    if len(shape) != 3:
        places = [[i] for i in range(d)]
    else:
        c, h, w = shape
        high, wide = (max(s for s in range(1, 9) if side % s == 0) for side in (h, w))
        places = [
            [k * h * w + i * w + j for k in range(c) for i in range(a, a + high)
             for j in range(b, b + wide)]
            for a in range(0, h, high) for b in range(0, w, wide)
        ]  # fmt: skip
    for block in places:
        for line in fit.basis:
            row = np.zeros(d)
            row[block] = line
            rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("shape", SHAPES)
def test_all_blocks_together_are_an_orthonormal_projection(shape):
    sample = np.random.default_rng(0).standard_normal((300, math.prod(shape))).astype(np.float32)
    fit = blocks.fitted(shape, sample)
    rows = direct(shape, fit)
    assert fit.numbers == len(rows) == blocks.numbers_of(shape)
    assert np.allclose(rows @ rows.T, np.eye(len(rows)), atol=1e-5)
    assert np.allclose(fit.project(sample[:2]), sample[:2] @ rows.T, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_kept_of_the_sample_is_within_half_a_step(shape):
    sample = np.random.default_rng(1).uniform(-1, 1, (50, math.prod(shape))).astype(np.float32)
    fit = blocks.fitted(shape, sample)
    kept, lengths = fit.compress(sample)
    back = (kept.astype(np.float64) - blocks.MIDDLE) * fit.unit
    rows, values = direct(shape, fit), sample.astype(np.float64)
    exact = values @ rows.T
    assert (np.abs(back - exact) <= 0.5001 * fit.unit + 1e-5).all()
    assert np.allclose(lengths[:, 0], np.linalg.norm(values - exact @ rows, axis=1), atol=2e-2)
    assert np.allclose(lengths[:, 1], np.linalg.norm(back - exact, axis=1), atol=1e-4)


def test_they_are_the_directions_with_the_largest_squares():
    """Against a singular value decomposition of all blocks of the sample."""
    rng = np.random.default_rng(2)
    sample = np.cumsum(rng.standard_normal((400, 3 * 16 * 16)), axis=1).astype(np.float32)
    fit = blocks.fitted((3, 16, 16), sample)
    stacked = np.concatenate([sample[:, c] for c in fit.columns]).astype(np.float64)
    most = (np.linalg.svd(stacked, compute_uv=False)[: len(fit.basis)] ** 2).sum()
    assert ((stacked @ fit.basis.T) ** 2).sum() == pytest.approx(most, rel=1e-4)


def test_images_that_are_all_nothing_are_seen_as_nothing():
    fit = blocks.fitted((1, 8, 8), np.zeros((3, 64), np.float32))
    kept, lengths = fit.compress(np.zeros((3, 64), np.float32))
    assert (kept == blocks.MIDDLE).all()
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
def test_tensors_that_are_none_are_refused(damage):
    tensors = blocks.fitted((1, 8, 8), np.ones((3, 64), np.float32)).tensors()
    assert blocks.of_tensors((1, 8, 8), dict(tensors)).numbers == 4
    damage(tensors)
    with pytest.raises((ValueError, KeyError)):
        blocks.of_tensors((1, 8, 8), tensors)
