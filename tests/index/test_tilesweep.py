"""Tiles' nearest images by blocks of all, against the same distances of all images in float64."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from golddiff import PCA, AdaptiveSchedule, GoldDiff, ImageStore
from golddiff.adaptive import tilesweep
from golddiff.adaptive.measuring import ways_of
from golddiff.adaptive.plan import Kind
from golddiff.adaptive.tilesweep import TileSweepLooker
from golddiff.index import Index
from golddiff.kernels.block_energies import block_energies


@given(
    st.integers(1, 200),
    st.integers(1, 5),
    st.integers(1, 20),
    st.integers(0, 30),
    st.integers(0, 9),
)
def test_energies_are_squared_differences_block_by_block(count, blocks, each, start, seed):
    rng = np.random.default_rng(seed)
    flat = rng.integers(-127, 128, (start + count + 3, blocks * each)).astype(np.int8)
    goal = rng.standard_normal(blocks * each).astype(np.float32)
    units = rng.uniform(0.01, 1, blocks * each).astype(np.float32)
    made = block_energies(flat, start, count, goal, units, each)
    z = flat[start : start + count].astype(np.float64) * units
    exact = ((z - goal) ** 2).reshape(count, blocks, each).sum(2).T
    assert np.allclose(made[:, :count], exact, rtol=1e-4, atol=1e-3)


def exact_distances(screen, shares, x):
    """(T, N) in float64, from what the index keeps."""
    blocks = screen._blocks
    z = np.asarray(screen._flat).astype(np.float64) * blocks.scales
    away = (z - blocks.project(x)) ** 2
    return shares.astype(np.float64) @ away.reshape(len(z), len(blocks.columns), -1).sum(2).T


@pytest.fixture(scope="module")
def tiles(indexed):
    """A looker over 8x8 tiles of smooth relevance, a query, and all distances."""
    rng = np.random.default_rng(0)
    relevance = rng.random((9, indexed.store.d), np.float32)
    looker = TileSweepLooker(indexed.screen, relevance, None)
    x = rng.standard_normal(indexed.store.d).astype(np.float32)
    assert looker.shares.shape == (9, len(indexed.screen._blocks.columns))
    return looker, x, exact_distances(indexed.screen, looker.shares, x)


@pytest.mark.parametrize("k", [1, 32, 500, 2999, 3000])
@pytest.mark.parametrize("at_once", [64, 1000, 16_384])
def test_the_nearest_of_all(tiles, monkeypatch, k, at_once):
    monkeypatch.setattr(tilesweep, "IMAGES_AT_ONCE", at_once)
    looker, x, exact = tiles
    found = looker.look(x).nearest(k)
    for support, line in zip(found, exact, strict=True):
        assert len(support.rows) == k
        assert (np.diff(support.rows) > 0).all()
        worst = np.sort(line)[k - 1]
        assert line[support.rows].max() <= worst * (1 + 1e-4)


def test_some_tiles_and_fewer_of_the_same(tiles):
    looker, x, _ = tiles
    all_, some = looker.look(x).nearest(40), looker.look(x, [2, 7])
    assert [list(s.rows) for s in some.nearest(40)] == [list(all_[t].rows) for t in (2, 7)]
    for few, many in zip(some.nearest(5, of=40), some.nearest(40), strict=True):
        assert set(few.rows) <= set(many.rows)


def test_where_the_guess_lets_too_few_through_all_are_looked_at(tiles, monkeypatch):
    looker, x, exact = tiles
    look = looker.look(x)
    monkeypatch.setattr(look, "_limits", lambda k: np.zeros(9, np.float32))
    for support, line in zip(look.nearest(7), exact, strict=True):
        assert set(support.rows) == set(np.argsort(line)[:7])


@pytest.mark.parametrize("k", [30, 400])
def test_draws_are_by_weight_and_stand_for_all(tiles, monkeypatch, k):
    """Sums over all images, estimated from what is drawn: within their standard deviations."""
    monkeypatch.setattr(tilesweep, "IMAGES_AT_ONCE", 1000)
    looker, x, exact = tiles
    sigma = 1.0
    look, n = looker.look(x), exact.shape[1]
    draws = [look.drawn(k, sigma, (seed,)) for seed in range(60)]
    for t, line in enumerate(exact):
        weights = np.exp(-(line - line.min()) / (2 * sigma**2))
        sums, counts = [], []
        for supports in draws:
            support = supports[t]
            assert (np.diff(support.rows) > 0).all()
            stands_for = np.exp(support.log_importance())
            assert stands_for.min() >= 1 - 1e-6
            sums.append((weights[support.rows] * stands_for).sum() / weights.sum())
            counts.append(stands_for.sum() / n)
        for made in (sums, counts):
            assert abs(np.mean(made) - 1) < 5 * np.std(made) / 60**0.5 + 1e-3
        assert np.mean([len(supports[t].rows) for supports in draws]) <= 1.2 * k + 5


def test_the_same_stream_draws_the_same_and_a_class_only_its_own(indexed):
    store = indexed.store
    rows = store.rows_of(0)
    relevance = np.random.default_rng(5).random((3, store.d), np.float32)
    looker = TileSweepLooker(indexed.screen, relevance, rows)
    x = store.values(rows[:1])[0]
    first, again = (looker.look(x, None, int(rows[3])).drawn(50, 1.0, (4,)) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        assert np.array_equal(one.rows, other.rows)
        assert np.isin(one.rows, rows).all()
        assert rows[3] not in one.rows


def test_of_a_class_and_without_one(indexed):
    store = indexed.store
    rng = np.random.default_rng(3)
    relevance = rng.random((4, store.d), np.float32)
    rows = store.rows_of(1)
    looker = TileSweepLooker(indexed.screen, relevance, rows)
    x = store.values(rows[:1])[0]
    found, without = looker.look(x).nearest(20), looker.look(x, None, int(rows[0])).nearest(20)
    for support, other in zip(found, without, strict=True):
        assert np.isin(support.rows, rows).all()
        assert rows[0] in support.rows
        assert rows[0] not in other.rows
    everything = looker.look(x).nearest(len(rows))
    assert all(np.array_equal(support.rows, rows) for support in everything)


def test_they_compete_where_blocks_are_in_memory_and_are_the_full_scan_of_all(indexed):
    store = indexed.store
    schedule = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05, index=True)).schedule
    kind = Kind("nearest", 8, by_blocks=True)
    assert kind in ways_of(schedule, 8, None)
    assert Kind("nearest", 4, by_blocks=True) not in ways_of(schedule, 4, None)
    looker = schedule.looker(0.5, None, kind)
    assert isinstance(looker, TileSweepLooker)
    assert looker.work("nearest", 10) > 0
    assert min(looker.counted("nearest", 10)) > 0
    assert looker.work("drawn", 10) > looker.work("nearest", 10)
    small = ImageStore.open(store.path, memory_limit=100_000)
    assert not Index.open(small).screen.in_memory
    limited = GoldDiff(PCA(small, 0.05), AdaptiveSchedule(0.05, index=True)).schedule
    assert kind not in ways_of(limited, 8, None)
