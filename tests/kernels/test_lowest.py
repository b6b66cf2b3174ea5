import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from golddiff.kernels.lowest import lowest


def first_by_sorting(numbers, k):
    return np.sort(np.argsort(numbers, kind="stable")[:k])


@given(st.integers(1, 3000), st.integers(1, 3000), st.sampled_from([1, 3, 100]), st.integers(0, 99))
def test_the_lowest_are_the_first_of_a_stable_sort(n, k, values, seed):
    generator = np.random.default_rng(seed)
    ties = generator.integers(0, values, n).astype(np.float32)
    for numbers in (ties, generator.standard_normal(n).astype(np.float32)):
        assert np.array_equal(lowest(numbers, k), first_by_sorting(numbers, min(k, n)))


def test_the_lowest_are_exact_though_the_sample_misleads():
    numbers = np.ones(4096, np.float32)
    numbers[::16] = 0  # exactly the sampled numbers are low
    assert np.array_equal(lowest(numbers, 300), first_by_sorting(numbers, 300))
    assert np.array_equal(lowest(1 - numbers, 300), first_by_sorting(1 - numbers, 300))


def test_infinities_come_last():
    numbers = np.full(1000, np.inf, np.float32)
    numbers[[5, 900]] = 1
    assert np.array_equal(lowest(numbers, 2), [5, 900])
