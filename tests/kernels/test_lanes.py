import numpy as np
import pytest
from numba import njit

from golddiff.kernels.boxsum import box_sum
from golddiff.kernels.lanes import (
    LANES,
    LINE,
    empty_numbers,
    exp,
    load,
    store,
)


@njit
def exp_of_all(a):
    for i in range(0, len(a), LANES):
        store(a, i, exp(load(a, i)))


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
