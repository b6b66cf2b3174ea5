"""Bootstrap intervals against a direct computation."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.evaluation.bootstrap import RESAMPLES, bootstrap
from golddiff.system.errors import ArgumentError
from golddiff_lab.paper.tables import paired_difference

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


@given(st.lists(finite_floats, min_size=2, max_size=20), finite_floats)
def test_a_constant_paired_difference_has_an_interval_of_width_zero(values, shift):
    interval = paired_difference([v + shift for v in values], values)
    assert interval.low == pytest.approx(shift, abs=1e-6)
    assert interval.high == pytest.approx(shift, abs=1e-6)


def test_the_paired_difference_is_the_bootstrap_of_the_differences():
    generator = np.random.default_rng(0)
    difficulty = generator.normal(0, 10, 50)  # images differ more than methods
    a, b = difficulty + 1 + generator.normal(0, 0.1, 50), difficulty
    paired = paired_difference(a.tolist(), b.tolist())
    assert paired == bootstrap(a - b)
    assert 0.9 < paired.low < paired.mean < paired.high < 1.1
    assert bootstrap(a).high - bootstrap(a).low > 10 * (paired.high - paired.low)


def test_undefined_values_are_excluded_from_mean_and_count():
    assert bootstrap([1.0, math.nan, 3.0]).count == 2
    assert bootstrap([1.0, math.nan, 3.0]).mean == 2
    assert paired_difference([1.0, None, 3.0], [0.0, 0.0, None]).count == 1
    empty = bootstrap([math.nan])
    assert math.isnan(empty.mean)
    assert empty.figures() == {"mean": None, "low": None, "high": None, "count": 0}


def test_bad_shapes_are_refused():
    with pytest.raises(ArgumentError, match="values: got shape"):
        bootstrap([[1.0]])
    with pytest.raises(ArgumentError, match="b: got 1 values, expected 2"):
        paired_difference([1.0, 2.0], [1.0])
