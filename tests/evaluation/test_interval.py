"""Confidence intervals of means."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.evaluation.interval import mean_interval
from golddiff.system.errors import ArgumentError

finite_floats = st.floats(-100, 100)


def test_the_interval_is_students():
    # t(0.975, 4) = 2.7764451; the sample's variance is 0.118
    interval = mean_interval([0.1, 0.7, 0.3, 0.9, 0.2])
    half = 2.7764451 * math.sqrt(0.118 / 5)
    assert interval.mean == pytest.approx(0.44)
    assert (interval.low, interval.high) == pytest.approx((0.44 - half, 0.44 + half))
    assert interval.count == 5


@pytest.mark.parametrize("n", [2, 4, 32])
def test_the_interval_holds_the_mean_of_normal_values_in_95_of_100_cases(n):
    values = np.random.default_rng(0).normal(2.0, 3.0, (4000, n))
    intervals = map(mean_interval, values)
    covered = np.mean([interval.low <= 2 <= interval.high for interval in intervals])
    assert covered == pytest.approx(0.95, abs=0.015)


@given(st.lists(finite_floats, min_size=1, max_size=30), st.floats(-5, 5))
def test_the_interval_moves_with_the_values(values, shift):
    one, moved = mean_interval(values), mean_interval(np.array(values) + shift)
    assert one.low <= one.mean <= one.high
    expected = (one.low + shift, one.high + shift)
    assert (moved.low, moved.high) == pytest.approx(expected, abs=1e-9, rel=1e-9)


def test_undefined_values_are_excluded_from_mean_and_count():
    assert mean_interval([1.0, math.nan, 3.0]).count == 2
    assert mean_interval([1.0, math.nan, 3.0]).mean == 2
    assert mean_interval(np.array([1.0, None, 3.0], np.float64)).count == 2
    empty = mean_interval([math.nan])
    assert math.isnan(empty.mean)
    assert empty.figures() == {"mean": None, "low": None, "high": None, "count": 0}


def test_bad_shapes_are_refused():
    with pytest.raises(ArgumentError, match="values: got shape"):
        mean_interval([[1.0]])


def test_one_value_has_no_interval():
    assert mean_interval([0.25]).bounds(".2f") == "no interval"
    assert mean_interval([0.0, 0.0]).bounds(".1f") == "0.0 to 0.0"
