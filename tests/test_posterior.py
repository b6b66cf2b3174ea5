"""Accumulated posteriors do not depend on the order or size of parts."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from golddiff.posterior import Posterior

LOGITS = arrays(np.float64, (12, 3), elements=st.floats(-1e4, 1e4))
VALUES = arrays(np.float64, (12, 3), elements=st.floats(-1, 1))


def part(logits, values):
    """The posterior of a few images of 3 values, with a logit for each value."""
    top = logits.max(axis=0)
    weights = np.exp(logits - top)
    return Posterior(top[None], weights.sum(0)[None], (weights * values).sum(0)[None])


def weighted_mean(logits, values):
    weights = np.exp(logits - logits.max(axis=0))
    return (weights * values).sum(0) / weights.sum(0)


@given(LOGITS, VALUES, st.permutations(range(12)), st.sets(st.integers(1, 11)))
def test_the_mean_does_not_depend_on_the_order_or_size_of_parts(logits, values, order, cuts):
    total = Posterior.empty(1, 3, 3)
    bounds = [0, *sorted(cuts), 12]
    for start, stop in itertools.pairwise(bounds):
        rows = list(order[start:stop])
        total = total.merge(part(logits[rows], values[rows]))
    assert np.abs(total.mean()[0] - weighted_mean(logits, values)).max() < 1e-12


@given(LOGITS, VALUES)
def test_merging_is_associative_and_leaves_its_parts_unchanged(logits, values):
    a, b, c = (part(logits[i : i + 4], values[i : i + 4]) for i in (0, 4, 8))
    means = [p.mean() for p in (a, b, c)]
    for merged in (a.merge(b).merge(c), a.merge(b.merge(c))):
        assert np.abs(merged.mean()[0] - weighted_mean(logits, values)).max() < 1e-12
    assert all(np.array_equal(p.mean(), m) for p, m in zip((a, b, c), means, strict=True))


@given(LOGITS, VALUES)
def test_the_empty_posterior_is_the_neutral_element(logits, values):
    whole = part(logits, values)
    for merged in (whole.merge(Posterior.empty(1, 3, 3)), Posterior.empty(1, 3, 3).merge(whole)):
        assert np.array_equal(merged.mean(), whole.mean())
    empty = Posterior.empty(1, 3, 3).merge(Posterior.of_logits(logits.T - np.inf, values))
    assert not empty.total.any()
    assert not empty.weighted.any()


def test_a_location_gives_its_weight_to_all_channels_of_a_pixel():
    posterior = Posterior(
        np.zeros((1, 2)), np.array([[1.0, 2.0]]), np.array([[1.0, 2, 3, 4, 5, 6]])
    )
    assert posterior.mean().tolist() == [[1, 1, 3, 2, 5, 3]]


def test_the_mean_of_an_empty_posterior_raises_zero_division_error():
    with pytest.raises(ZeroDivisionError):
        Posterior.empty(2, 1, 5).mean()
