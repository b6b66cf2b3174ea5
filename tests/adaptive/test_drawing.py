"""Drawing by weight: the sums' expectations are those of all images."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff.adaptive.drawing import draw, factor, mixture_of
from golddiff.kernels.weights import taken, tempered_weights


@given(st.integers(1, 400), st.floats(0.01, 0.99), st.floats(0, 80), st.integers(0, 99))
def test_inclusion_probabilities_sum_to_the_count(n, share, spread, seed):
    generator = np.random.default_rng(seed)
    distances = (spread * generator.random(n)).astype(np.float32)
    count = max(1, int(share * n))
    tempered, *sums = tempered_weights(distances, float(distances.min()), 1.0)
    mixture = mixture_of(*sums, n)
    a, b, e = map(float, mixture)
    c = factor(tempered, mixture, count)
    t = tempered.astype(np.float64)
    expected = np.minimum(1, c * (a * t**5 + b * t + e))
    assert expected.sum() == pytest.approx(count, rel=1e-4)
    # Every image is in whose number is below its probability, and no other.
    uniform = generator.random(n, np.float32)
    places, p = taken(tempered, mixture, c, uniform, 0)
    assert (uniform[places] < p).all()
    assert np.allclose(p, expected[places], rtol=1e-5)
    assert len(places) == np.count_nonzero(uniform < expected)


@given(st.integers(1, 300), st.floats(0, 60), st.integers(0, 99))
def test_tempered_weights_are_those_of_float64(n, spread, seed):
    distances = (spread * np.random.default_rng(seed).random(n)).astype(np.float32)
    t, exact_sum, tempered_sum = tempered_weights(distances, float(distances.min()), 0.5)
    logits = -0.5 * (distances - distances.min()).astype(np.float64)
    assert np.allclose(t, np.exp(logits / 5), rtol=1e-5)
    assert exact_sum == pytest.approx(np.exp(logits).sum(), rel=1e-5)
    assert tempered_sum == pytest.approx(np.exp(logits / 5).sum(), rel=1e-5)


@pytest.mark.parametrize("near", [1, 30, 498, 499, 500, 501, 3000])
@pytest.mark.parametrize("apart", [0.0, 1e-3, 40.0])
def test_as_many_are_drawn_where_nearly_all_weight_is_sure(near, apart):
    """A difference of float32 sums would be rounding alone there."""
    generator = np.random.default_rng(near)
    n, count = 50_000, 500
    distances = (200 + generator.random(n)).astype(np.float32)
    distances[:near] = apart * generator.random(near)
    drawn = draw(distances, np.arange(n), count, 0.7, generator.random(n, np.float32))
    assert abs(len(drawn) - count) < 6 * np.sqrt(count)


@pytest.mark.parametrize("sigma", [0.05, 1.0, 20.0])
def test_sums_over_many_draws_are_the_sums_over_all_images(sigma):
    generator = np.random.default_rng(0)
    n = 500
    distances = (30 * generator.random(n)).astype(np.float32)
    logits = -(distances - distances.min()).astype(np.float64) / (2 * sigma**2)
    values = generator.standard_normal(n)
    totals, sums, sizes = [], [], []
    for _ in range(3000):
        support = draw(distances, np.arange(n), 60, sigma, generator.random(n, np.float32))
        assert (np.diff(support.rows) > 0).all()
        weights = np.exp(logits[support.rows] + support.log_weights)
        totals.append(weights.sum())
        sums.append((weights * values[support.rows]).sum())
        sizes.append(len(support))
    for found, expected in (
        (totals, np.exp(logits).sum()),
        (sums, (np.exp(logits) * values).sum()),
    ):
        error = abs(np.mean(found) - expected)
        assert error < 5 * np.std(found) / np.sqrt(len(found)) + 1e-9
    assert np.mean(sizes) == pytest.approx(60, rel=0.02)


def test_what_decides_the_posterior_is_always_in():
    distances = np.full(1000, 50, np.float32)
    distances[[3, 700]] = 0, 1e-3
    support = draw(distances, np.arange(1000), 40, 0.1, np.full(1000, 0.999999, np.float32))
    assert np.array_equal(support.rows, [3, 700])
    assert np.allclose(support.log_weights, 0)


def test_something_is_always_drawn():
    support = draw(
        np.zeros(50, np.float32), np.arange(50), 1, 1.0, np.full(50, 0.999999, np.float32)
    )
    assert len(support) == 1
