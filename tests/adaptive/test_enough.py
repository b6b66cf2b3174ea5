"""When measured errors are small enough."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.adaptive.enough import BelowAll, NearlyAllWithin

KINDS = [np.arange(0, 6), np.arange(6, 26)]
SQUARES = st.lists(st.sampled_from([0.0, 1e-6, 1e-3, 2e-3, 2.4e-3, 2.6e-3, 0.1]), min_size=26)


@given(SQUARES, st.lists(st.booleans(), min_size=26))
def test_what_some_refuse_all_refuse(squares, known):
    full = np.array(squares[:26])
    some = np.where(known[:26], full, np.nan)
    rule = NearlyAllWithin(0.05, KINDS)
    assert not (rule.refuses(some) and rule(full))


@given(SQUARES)
def test_it_holds_for_each_kind_by_itself(squares):
    full = np.array(squares[:26])
    each = [NearlyAllWithin(0.05, [kind])(full) for kind in KINDS]
    assert NearlyAllWithin(0.05, KINDS)(full) == all(each)


@given(SQUARES, st.lists(st.booleans(), min_size=26))
def test_of_those_kept_it_is_as_if_there_were_no_others(squares, keep):
    full, kept = np.array(squares[:26]), np.array(keep[:26])
    left = [np.flatnonzero(kept[kind]) for kind in KINDS]
    places = np.flatnonzero(kept)
    of = [np.searchsorted(places, kind[some]) for kind, some in zip(KINDS, left, strict=True)]
    alone = NearlyAllWithin(0.05, [kind for kind in of if len(kind)])
    assert NearlyAllWithin(0.05, KINDS)(full, kept) == alone(full[kept])


@pytest.mark.parametrize("below", [1.0, 30.0])
def test_errors_of_a_known_spread_above_their_median(below):
    """Of a normal logarithm 95 in 100 lie below its median and 1.645 standard deviations.

    How far errors lie below the median changes nothing.
    """
    upper = np.linspace(0.1, 1, 13)
    ratios = np.concatenate([-below * upper, [0.0], upper])
    point = 1.645 * np.sqrt((upper**2).sum() / 12)
    for shift in (0.02, -0.02):
        squares = 0.05**2 * np.exp(ratios - point + shift)
        assert NearlyAllWithin(0.05, [np.arange(27)])(squares) == (shift < 0)


@pytest.mark.parametrize("factor", [0.5, 0.99, 1.01])
def test_below_bounds_pair_by_pair(factor):
    """The same share of each bound, however far apart these are, leaves no doubt."""
    bounds = np.exp(np.linspace(-8, 2, 26))
    assert BelowAll([bounds], KINDS)(factor * bounds) == (factor <= 1)
    assert not BelowAll([bounds, 0.1 * bounds], KINDS)(factor * bounds)
    assert not BelowAll([bounds], KINDS).refuses(np.full(26, 1e9))
