"""A blend is the weighted mean of its denoisers, its weights linear in log sigma."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff import Blend, Optimal, Wiener
from golddiff.system.errors import ArgumentError

PAIRS = [(0.1, (1.0, 0.0)), (10.0, (0.0, 1.0))]


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(50, (1, 4, 4)), torch.arange(50) % 2)


@pytest.mark.parametrize(
    ("sigma", "share"), [(0.01, 1.0), (0.1, 1.0), (1.0, 0.5), (10.0, 0.0), (80.0, 0.0)]
)
def test_it_is_the_weighted_mean_of_the_clipped(store, queries, sigma, share):
    x = queries(store, sigma)
    optimal, wiener = Optimal(store), Wiener(store)
    expected = share * optimal(x, sigma, 1) + (1 - share) * wiener(x, sigma, 1).clamp(-1, 1)
    got = Blend([optimal, wiener], PAIRS)(x, sigma, 1)
    assert (got - expected).abs().max() < 1e-6


def test_floats_are_not_clipped(make_store):
    store = make_store(5 * torch.randn(30, 3, generator=torch.Generator().manual_seed(0)))
    x = 6 * torch.ones(1, 3)
    wiener = Wiener(store)
    assert torch.equal(Blend([wiener], [(1.0, [1.0])])(x, 0.1), wiener(x, 0.1))
    assert wiener(x, 0.1).max() > 1


@given(st.floats(1e-3, 200))
def test_the_weights_sum_to_one_at_every_noise(sigma):
    blend = Blend.__new__(Blend)
    from golddiff.estimators.blend import _checked

    blend._levels, blend._weights = _checked([*PAIRS, (1.0, (0.25, 0.75))], 2)
    weights = blend.weights_at(sigma)
    assert math.isclose(weights.sum(), 1)
    assert (weights >= 0).all()


def test_a_denoiser_without_weight_does_not_run(store, queries, monkeypatch):
    optimal = Optimal(store)
    monkeypatch.setattr(optimal, "denoise", lambda *_: pytest.fail("ran"))
    Blend([optimal, Wiener(store)], PAIRS)(queries(store, 20.0), 20.0)


def test_it_tells_which_denoisers_run(store):
    parts = (Optimal(store), Wiener(store))
    blend = Blend(parts, [(1.0, (0.5, 0.5)), (2.0, (0.0, 1.0))])
    assert blend.running_at(1.9) == [*parts]
    assert blend.running_at(2.0) == blend.running_at(50.0) == [parts[1]]


def test_pairs_may_come_in_any_order_and_are_told_ascending(store):
    blend = Blend([Optimal(store), Wiener(store)], PAIRS[::-1])
    assert [(round(s, 9), w) for s, w in blend.weights] == PAIRS


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([], "weights: got none"),
        ([(1.0, (0.5, 0.6))], "sum to 1"),
        ([(1.0, (-0.5, 1.5))], ">= 0"),
        ([(1.0, (1.0,))], "expected 2 numbers"),
        ([(0.0, (0.5, 0.5))], "got sigma 0.0"),
        ([(math.nan, (0.5, 0.5))], "got sigma nan"),
        ([(1.0, (math.nan, 0.5))], "expected 2 numbers"),
        ([(1.0, (0.5, 0.5)), (1.0, (0.5, 0.5))], "same sigma twice"),
    ],
)
def test_bad_weights(store, weights, message):
    with pytest.raises(ArgumentError, match=message):
        Blend([Optimal(store), Wiener(store)], weights)


def test_bad_denoisers(store, make_store):
    with pytest.raises(ArgumentError, match="denoisers: got none"):
        Blend([], [(1.0, ())])
    other = make_store(torch.zeros(2, 1, 4, 4, dtype=torch.uint8))
    with pytest.raises(ArgumentError, match="different stores"):
        Blend([Wiener(store), Wiener(other)], PAIRS)
    with pytest.raises(ArgumentError, match="denoisers: got str among them"):
        Blend([Wiener(store), "wiener"], PAIRS)
