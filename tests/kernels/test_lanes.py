import numpy as np
import pytest
from numba import njit

from golddiff.kernels.boxsum import box_sum
from golddiff.kernels.lanes import (
    BLOCK,
    LANES,
    LINE,
    any_above,
    empty_numbers,
    exp,
    larger,
    largest,
    load,
    load_block,
    spread,
    spread_block,
    store,
    sum_of,
)


@njit
def exp_of_all(a):
    for i in range(0, len(a), LANES):
        store(a, i, exp(load(a, i)))


@njit
def arithmetic(a, b):
    x, y = load(a, 0), load(a, LANES)
    store(b, 0, x + y)
    store(b, LANES, x - y)
    store(b, 2 * LANES, x * y)
    store(b, 3 * LANES, spread(a[0]))
    store(b, 4 * LANES, larger(x, y))


@njit
def comparisons(a, number):
    lanes = load(a, 0)
    return largest(lanes), any_above(lanes, number)


@pytest.mark.kernels
def test_exp_is_within_2e_7_of_float64():
    small = np.logspace(-8, 1, 2**16)
    t = np.concatenate([np.linspace(-86.99, 88, 2**20), small, -small]).astype(np.float32)
    expected = np.exp(t.astype(np.float64))
    exp_of_all(t)
    assert np.abs(t / expected - 1).max() < 2e-7


def test_exp_of_zero_is_one_and_of_very_negative_numbers_below_2e_38():
    t = np.array([0, -0.0, -87, -88, -1e10, -1e38, -np.inf, 1] * 2, np.float32)
    exp_of_all(t)
    assert (t[:2] == 1).all()
    assert (t[2:7] < 2e-38).all()
    assert (t >= 0).all()


def test_arithmetic_is_elementwise():
    a = np.random.default_rng(0).normal(size=2 * LANES).astype(np.float32)
    b = np.zeros(5 * LANES, np.float32)
    arithmetic(a, b)
    x, y = a[:LANES], a[LANES:]
    expected = [x + y, x - y, x * y, np.full(LANES, a[0]), np.maximum(x, y)]
    assert np.array_equal(b, np.concatenate(expected))


@njit
def of_block(a, b):
    x = load_block(a, 0)
    y = x * a[1] + a[2] - spread_block(a[3])
    store(b, 0, larger(exp(y), a[4]))
    return largest(y), sum_of(y), any_above(y, a[5])


def test_a_block_is_64_lanes_that_also_combine_with_numbers():
    a, b = np.random.default_rng(0).normal(size=(2, BLOCK)).astype(np.float32)
    y = a * a[1] + a[2] - a[3]
    results = of_block(a, b)
    assert np.allclose(b, np.maximum(np.exp(y), a[4]), rtol=1e-6)
    assert results == (pytest.approx(y.max()), pytest.approx(y.sum(), rel=1e-5), y.max() > a[5])


@pytest.mark.parametrize("lane", range(LANES))
def test_largest_and_any_above_find_any_lane(lane):
    a = np.full(LANES, -3, np.float32)
    a[lane] = -1
    assert comparisons(a, np.float32(-2)) == (-1, True)
    assert comparisons(a, np.float32(-1)) == (-1, False)
    assert comparisons(a, np.float32(-0.5)) == (-1, False)


@pytest.mark.parametrize("window", range(1, 60))
@pytest.mark.parametrize("step", [1, 3])
def test_box_sum_is_the_sum_of_the_window(window, step):
    n = 11
    a = np.random.default_rng(window).integers(0, 99, (n + (window - 1) * step, LANES))
    expected = np.stack([a[i : i + window * step : step].sum(axis=0) for i in range(n)])
    out = np.full((n + 4, LANES), -1, np.float32)
    box_sum(out.reshape(-1), 2, a.astype(np.float32).reshape(-1), n, window, step)
    assert np.array_equal(out[2:-2], expected)
    assert (out[[0, 1, -2, -1]] == -1).all()


def test_box_sums_of_small_numbers_are_exact_beside_large_ones():
    a = np.zeros((40, LANES), np.float32)
    a[:20], a[20:] = 1e6, 1e-6
    out = np.zeros((34, LANES), np.float32)
    box_sum(out.reshape(-1), 0, a.reshape(-1), 34, 7, 1)
    assert np.allclose(out[20:], 7e-6, rtol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 1000])
def test_empty_numbers_are_aligned_to_cache_lines(count):
    for allocate in (empty_numbers, empty_numbers.py_func):
        numbers = allocate(count)
        assert numbers.shape == (count,)
        assert numbers.ctypes.data % LINE == 0 or count == 0
