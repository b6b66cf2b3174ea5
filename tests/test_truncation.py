"""The bounds of Theorem 1 are never below the truncation error."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from golddiff_lab.paper.theorem1 import tail_bound, truncation_bound


@st.composite
def posteriors(draw):
    n = draw(st.integers(1, 30))
    seed = draw(st.integers(0, 10**6))
    generator = np.random.default_rng(seed)
    spread = 10 ** draw(st.floats(-3, 3))
    logits = generator.normal(0, spread, n)
    if draw(st.booleans()):
        logits = np.round(logits, 0)  # ties
    values = generator.normal(0, 1, (n, draw(st.integers(1, 5))))
    order = np.argsort(-logits)
    return logits[order], values[order], draw(st.integers(1, n))


def truncation_error(logits, values, k):
    """Distance between the exact and the truncated mean, computed in extended precision."""
    order = np.argsort(-logits, kind="stable")
    weights = np.exp((logits - logits.max()).astype(np.longdouble))
    kept = order[:k]
    exact = weights @ values / weights.sum()
    truncated = weights[kept] @ values[kept] / weights[kept].sum()
    return float(np.sqrt(((exact - truncated) ** 2).sum()))


@given(posteriors())
def test_the_bound_is_never_below_the_error(posterior):
    logits, values, k = posterior
    radius = float(np.linalg.norm(values, axis=1).max())
    error = truncation_error(logits, values, k)
    tail, bound = tail_bound(logits, k, radius), truncation_bound(logits, k, radius)
    assert error <= tail * (1 + 1e-12) + 1e-14 * radius  # rounding of both means
    assert tail <= bound * (1 + 1e-12)


def test_the_tail_bound_is_attained_by_two_opposite_images():
    logits, values = np.array([0.0, -1.0]), np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert truncation_error(logits, values, 1) == pytest.approx(tail_bound(logits, 1, 1.0))


def test_the_bound_is_the_formula_of_the_paper():
    logits = np.array([2.0, 0.5, -1.0, -3.0])
    assert truncation_bound(logits, 2, 1.5) == pytest.approx(2 * 1.5 * 2 * np.exp(-3.0))


@given(posteriors())
def test_the_bound_is_invariant_to_a_constant_added_to_all_logits(posterior):
    logits, _, k = posterior
    assert truncation_bound(logits + 8.0, k, 1.0) == pytest.approx(
        truncation_bound(logits, k, 1.0), rel=1e-9, abs=1e-300
    )


@given(posteriors())
def test_the_bound_does_not_increase_with_k_and_is_0_for_all_images(posterior):
    logits, _, k = posterior
    assert truncation_bound(logits, len(logits), 1.0) == 0
    assume(k < len(logits))
    assert truncation_bound(logits, k + 1, 1.0) <= truncation_bound(logits, k, 1.0)
