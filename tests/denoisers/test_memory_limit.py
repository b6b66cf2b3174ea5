"""Working memory is bounded, by ``memory_limit`` for estimators, and this changes no result."""

import math
import tracemalloc
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from golddiff import PCA, GoldDiff, Kamb, Optimal, PSPCSquare, log_likelihood
from golddiff.evaluation.peak_memory import peak_memory
from golddiff.store.posteriors import MERGED, fitting
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import IN_FLIGHT


def test_a_smaller_limit_gives_the_same_images(make_store, smooth_images, queries):
    store = make_store(smooth_images(100, (1, 8, 8)))
    x = queries(store, 1.0, b=32)
    weights = torch.linspace(0, 3, 100)
    for estimator in (
        Optimal, PCA, lambda s, **k: Kamb(s, 3, **k), lambda s, **k: PCA(s, **k).given(weights)
    ):  # fmt: skip
        part, each = estimator(store).working_bytes(100)
        threads = torch.get_num_threads()
        results = IN_FLIGHT * threads + MERGED
        tight = estimator(store, memory_limit=threads * part + 3 * results * each)
        assert fitting(tight, 100) == (threads, 3)
        assert torch.equal(tight(x, 1.0), estimator(store)(x, 1.0))
        assert torch.equal(estimator(store, memory_limit=math.inf)(x, 1.0), tight(x, 1.0))


@pytest.mark.parametrize("method", [lambda base: base, GoldDiff])
def test_posteriors_of_patches_stay_within_the_limit(make_store, smooth_images, queries, method):
    """Regression: those of a whole batch were kept, 5 GB for 64 colour images of 64 x 64."""
    store = make_store(smooth_images(100, (3, 16, 16)))
    x = queries(store, 1.0, b=64)
    expected = method(PSPCSquare(store, 8))(x, 1.0)
    limited = method(PSPCSquare(store, 8, memory_limit=2e6))
    limited(x[:1], 1.0)
    tracemalloc.start()
    assert torch.equal(limited(x, 1.0), expected)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3e6  # 24 MB without the limit


@given(st.integers(0, 10**9), st.integers(1, 10**8), st.integers(1, 500))
def test_threads_and_queries_stay_within_the_limit(part, each, threads):
    estimator = SimpleNamespace(memory_limit=1e9, working_bytes=lambda _: (part, each))
    with (
        mock.patch("torch.get_num_threads", return_value=threads),
        mock.patch("golddiff.system.memory.free_memory", return_value=math.inf),
    ):
        used, queries = fitting(estimator, 100)
    results = IN_FLIGHT * used + MERGED
    assert 1 <= used <= threads
    needed = used * part + queries * results * each
    assert needed <= 1e9 or (used, queries) == (1, 1)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("threads", [1, 64])
def test_a_limit_too_small_for_one_query_weighs_it_alone(
    make_store, smooth_images, queries, threads
):
    store = make_store(smooth_images(100, (3, 16, 16)))
    x = queries(store, 1.0, b=3)
    expected = PCA(store, share="seamless")(x, 1.0)
    torch.set_num_threads(threads)  # the fixture restores it
    tight = PCA(store, share="seamless", memory_limit=1000)
    assert fitting(tight, 100) == (1, 1)
    assert (tight(x, 1.0) - expected).abs().max() < 1e-6


def test_batch_averages_need_no_more_than_the_limit_for_one_batch(
    make_store, smooth_images, queries
):
    store = make_store(smooth_images(60, (1, 8, 8)))
    x = queries(store, 1.0, b=3)
    whole = PCA(store, weighting="wss", batch_size=7)(x, 1.0)
    tight = PCA(store, weighting="wss", batch_size=7, memory_limit=1)(x, 1.0)
    assert (tight - whole).abs().max() < 1e-6


def test_more_memory_than_is_free_is_refused(make_store, smooth_images, monkeypatch):
    store = make_store(smooth_images(10, (1, 4, 4)))
    monkeypatch.setattr("golddiff.system.memory.free_memory", lambda: 100.0)
    with pytest.raises(ArgumentError, match=r"memory: one picture over .* images would take"):
        Optimal(store, memory_limit=1000)(torch.zeros(2, 1, 4, 4), 1.0)


def test_a_limit_of_zero_is_refused(make_store, smooth_images):
    with pytest.raises(ArgumentError, match="memory_limit: got 0, expected bytes above 0"):
        Optimal(make_store(smooth_images(10, (1, 4, 4))), memory_limit=0)


def test_the_likelihood_of_many_measurements_takes_little_more_than_its_result(
    make_store, smooth_images
):
    """Regression: 256 measurements of 64 x 64 colour pixels took 1.7 GB, with 41 MB of results."""
    store = make_store(smooth_images(100, (3, 32, 32)))
    y = torch.zeros(250, 3, 32, 32)
    log_likelihood(store, lambda images: images, y[:2], 0.5)
    with peak_memory() as peak:
        log_likelihood(store, lambda images: images, y, 0.5)
    if peak.kind == "resident":  # the system resets the peak
        assert peak.bytes - peak.before < 60e6  # y takes 6 MB in float64, the result 0.2 MB
