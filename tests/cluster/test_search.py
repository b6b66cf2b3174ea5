"""The k nearest of all shards from counts alone: the rows that a sort of everything gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.cluster.distances import Kept
from golddiff.cluster.keys import float32_of, keys_of
from golddiff.cluster.pool import Traffic
from golddiff.cluster.search import nearest
from golddiff.kernels.lowest import lowest


class Parts:
    """Shards that hold distances (P, n) and answer at once."""

    def __init__(self, parts):
        self.parts = [
            Kept.of("x", [np.arange(part.shape[1])] * len(part), 1, list(part)) for part in parts
        ]
        self.present, self.traffic = range(len(parts)), Traffic()

    def gather(self, method, arguments):
        answers = []
        for shard, kept in enumerate(self.parts):
            _, *rest = arguments(shard)
            call = {"extent": kept.extent, "counts_between": kept.histogram}[method]
            answers.append(call(*rest))
        return answers


def chosen(parts, count):
    """For each problem the places chosen, in the order of all shards' rows."""
    pool = Parts(parts)
    cuts = nearest(pool, [None] * len(parts), count)
    found = []
    for problem in range(len(parts[0])):
        start, places = 0, []
        for part, cut in zip(parts, cuts, strict=True):
            keys = keys_of(np.ascontiguousarray(part[problem]))
            below = np.flatnonzero(keys < cut.keys[problem])
            at = np.flatnonzero(keys == cut.keys[problem])[: cut.ties[problem]]
            places += (start + np.sort(np.concatenate([below, at]))).tolist()
            start += part.shape[1]
        found.append(places)
    return found, pool.traffic


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(lambda sizes: sum(sizes) > 0),
    st.integers(1, 60),
    st.integers(1, 1000),
    st.sampled_from([np.float32, np.float64]),
    st.integers(0, 2**32),
)
def test_the_nearest_of_all_shards_are_those_of_one(sizes, count, distinct, dtype, seed):
    generator = np.random.default_rng(seed)
    # Few distinct values: ties within and across shards.
    values = generator.integers(0, distinct, (2, sum(sizes))) * generator.choice([1e-9, 1.0, 1e9])
    if dtype == np.float32:
        values = values - values.mean()
    values = values.astype(dtype)
    parts = np.split(values, np.cumsum(sizes)[:-1], axis=1)
    expected = [lowest(problem, count).tolist() for problem in values]
    assert chosen(parts, count)[0] == expected


@pytest.mark.parametrize("n", [1_000, 100_000])
def test_the_rounds_are_few(n):
    values = np.random.default_rng(0).gamma(20, size=(1, n))
    found, traffic = chosen(np.split(values, 4, axis=1), n // 10)
    assert found == [lowest(values[0], n // 10).tolist()]
    assert traffic.histograms <= 4 * 5


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=30))
def test_keys_are_in_the_order_of_the_numbers(numbers):
    single = np.array(numbers, np.float32)
    double = np.abs(np.array(numbers, np.float64))
    for values in (single, double):
        keys = keys_of(values)
        np.testing.assert_array_equal(
            keys[:, None] < keys[None, :], values[:, None] < values[None, :]
        )
    np.testing.assert_array_equal(float32_of(keys_of(single)), single)
