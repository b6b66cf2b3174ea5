"""Bootstrap intervals against a direct computation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.evaluation.bootstrap import RESAMPLES, bootstrap
from golddiff.system.errors import ArgumentError

finite_floats = st.floats(-100, 100)


def test_the_interval_is_the_percentiles_of_resampled_means():
    values = [0.1, 0.7, 0.3, 0.9, 0.2]
    generator = np.random.default_rng(3)
    resamples = generator.integers(0, 5, (RESAMPLES, 5))
    means = sorted(sum(values[i] for i in row) / 5 for row in resamples)
    interval = bootstrap(values, seed=3)
    assert interval.mean == pytest.approx(0.44)
    assert interval.low == pytest.approx(np.quantile(means, 0.025))
    assert interval.high == pytest.approx(np.quantile(means, 0.975))
    assert interval.count == 5


def test_the_interval_of_many_values_is_as_wide_as_the_normal_one():
    values = np.random.default_rng(0).normal(2.0, 3.0, 2000)
    interval = bootstrap(values)
    width = 2 * 1.96 * values.std() / math.sqrt(2000)
    assert interval.high - interval.low == pytest.approx(width, rel=0.1)


@given(st.lists(finite_floats, min_size=1, max_size=30))
def test_the_interval_lies_within_the_values_and_is_reproducible(values):
    interval = bootstrap(values)
    slack = 1e-9 * max(1, *map(abs, values))
    assert min(values) - slack <= interval.low <= interval.high + slack
    assert interval.high <= max(values) + slack
    assert bootstrap(values) == interval


def test_undefined_values_are_excluded_from_mean_and_count():
    assert bootstrap([1.0, math.nan, 3.0]).count == 2
    assert bootstrap([1.0, math.nan, 3.0]).mean == 2
    assert bootstrap(np.array([1.0, None, 3.0], np.float64)).count == 2
    empty = bootstrap([math.nan])
    assert math.isnan(empty.mean)
    assert empty.figures() == {"mean": None, "low": None, "high": None, "count": 0}


def test_bad_shapes_are_refused():
    with pytest.raises(ArgumentError, match="values: got shape"):
        bootstrap([[1.0]])


def test_one_value_has_no_interval():
    assert bootstrap([0.25]).bounds(".2f") == "no interval"
    assert bootstrap([0.0, 1.0]).bounds(".1f") == "0.0 to 1.0"
