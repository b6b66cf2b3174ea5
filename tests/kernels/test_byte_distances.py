"""Distances of bytes agree with float64 at any width, and no sum overflows."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.byte_distances import MIDDLE, QuantizedQueries, byte_distances
from golddiff.kernels.stored import Stored


def distances(flat, unit, rows, queries):
    out = np.full((len(queries.units), len(rows)), np.nan, np.float32)
    byte_distances(Stored(flat, unit, -MIDDLE * unit), rows, queries, out, 0)
    return out


def exact(flat, unit, rows, values):
    decoded = (flat[rows].astype(np.float64) - MIDDLE) * unit
    return ((values[:, None] - decoded) ** 2).sum(axis=2)


@given(st.integers(1, 100), st.integers(1, 9), st.integers(1, 70), st.floats(1e-3, 1e3), st.data())
def test_distances_agree_with_float64(width, count, images, size, data):
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    flat = rng.integers(0, 256, (images, width), dtype=np.uint8)
    queries = QuantizedQueries.of((size * rng.standard_normal((count, width))).astype(np.float32))
    rows = rng.permutation(images)[: data.draw(st.integers(1, images))]
    found, expected = distances(flat, 0.1, rows, queries), exact(flat, 0.1, rows, queries.values)
    assert np.allclose(found, expected, rtol=1e-6, atol=1e-9 * expected.max())


@given(st.integers(1, 3000), st.floats(1e-6, 1e6))
def test_a_query_is_rounded_by_half_a_unit_at_most(width, size):
    z = (size * np.random.default_rng(width).standard_normal((2, width))).astype(np.float32)
    queries = QuantizedQueries.of(z)
    assert (np.abs(queries.values - z) <= queries.units[:, None] * (0.5 + 1e-6)).all()
    largest = np.abs(z).max(axis=1).astype(np.float64)
    assert (queries.units * min(2**15 - 1, 2**24 / width - 2) <= largest * (1 + 1e-9)).all()


def test_a_query_of_zeros_is_exact():
    assert (QuantizedQueries.of(np.zeros((1, 5), np.float32)).values == 0).all()


@pytest.mark.parametrize("width", [600, 70_000, 200_000])
@pytest.mark.parametrize("byte", [0, 255])
def test_no_sum_overflows(width, byte):
    """With bytes furthest from the middle and queries at their largest number."""
    flat = np.full((1, width), byte, np.uint8)
    queries = QuantizedQueries.of(np.stack([np.full(width, sign, np.float32) for sign in (-1, 1)]))
    rows = np.zeros(1, np.int64)
    found = distances(flat, 1 / 128, rows, queries)
    assert np.allclose(found, exact(flat, 1 / 128, rows, queries.values), rtol=1e-6)
