"""All images compared in one pass over their coordinates in memory."""

import gc

import numpy as np
import pytest

from golddiff import AdaptiveSchedule, GoldDiff, ImageStore, Optimal
from golddiff.adaptive import sweeping
from golddiff.adaptive.looking import IndexLooker
from golddiff.adaptive.measuring import ways_of
from golddiff.adaptive.plan import Kind
from golddiff.adaptive.sweeping import SweepLooker
from golddiff.index import Index
from golddiff.index.sweep import bytes_of
from golddiff.kernels.sweep import MIDDLE, blocked, swept


def whole(store):
    return np.ones((1, store.d), np.float32)


def looker_of(indexed, rows=None, numbers=None):
    sweep = indexed.sweep
    return SweepLooker(indexed, sweep, whole(indexed.store), rows, numbers or sweep.numbers)


@pytest.mark.parametrize("first", [16, 7, 5])
@pytest.mark.parametrize(("queries", "r"), [(1, 1), (2, 16), (5, 7)])
def test_the_kernel_is_a_product(queries, r, first):
    rng = np.random.default_rng(r)
    z = rng.integers(-127, 128, (192, 16)).astype(np.int8)
    own, vectors = rng.random(192, np.float32), rng.standard_normal((queries, r))
    exact = own - vectors @ (z[:, :r].T.astype(np.float64) + MIDDLE)
    out = np.empty((queries, 192), np.float32)
    parts = blocked(z[:, :first]), blocked(z[:, first:])
    swept(*parts, own, vectors.astype(np.float32), out)
    assert np.allclose(out, exact, rtol=1e-5, atol=1e-3)


def test_distances_are_those_of_the_coordinates(indexed):
    """Differences between images of |z - z_i|^2, with the coordinates as kept."""
    store, sweep = indexed.store, indexed.sweep
    locations = indexed.views[None]
    x = store.values(np.array([5, 8, 13])) + np.float32(0.2)
    z = locations.coordinates[0] * locations.fit.scale[0]
    for numbers in (sweep.first, sweep.numbers):
        goals = (x - locations.fit.mean[0]) @ locations.fit.basis[0, :numbers].T
        exact = (z[:, :numbers] ** 2).sum(1) - 2 * goals @ z[:, :numbers].T
        found = sweep.distances(x, numbers, np.empty((3, sweep.size), np.float32))
        shift = found - exact
        assert np.abs(shift - shift.mean(1, keepdims=True)).max() < 1e-3 * np.abs(exact).max()
        alone = sweep.distances(x[1:2], numbers, np.empty((1, sweep.size), np.float32))
        assert np.array_equal(alone[0], found[1])


def test_what_was_compared_before_is_not_overwritten(indexed):
    """Room for distances is used again, but not while anybody holds them."""
    store, looker = indexed.store, looker_of(indexed)
    first = looker.look(store.values(np.array([1]))[0])
    kept = first.nearest(5)[0].rows
    for row in range(5):
        looker.look(store.values(np.array([row]))[0]).nearest(5)
    assert np.array_equal(first.nearest(5)[0].rows, kept)
    del first
    gc.collect()
    assert len(looker._room) <= 2


def test_the_nearest_by_blocks_of_enough_are_the_nearest_by_blocks(indexed):
    store, looker = indexed.store, looker_of(indexed)
    x = store.values(np.array([9]))[0] + np.float32(0.1)
    distances = indexed.screen.compare(x, np.arange(store.n)).near
    distances[9] = np.inf
    expected = np.sort(np.argsort(distances)[:20])  # more are compared than there are
    look = looker.look(x, None, 9)
    assert np.array_equal(look.nearest(20)[0].rows, expected)
    assert np.array_equal(look.screened(20, 80.0)[0].rows, expected)
    assert np.isin(look.screened(20, 0.05)[0].rows, expected).all()


@pytest.mark.parametrize("without", [None, 4])
def test_a_class_and_what_is_left_out(indexed, without):
    store = indexed.store
    rows = store.rows_of(0)
    look = looker_of(indexed, rows).look(store.values(np.array([4]))[0], None, without)
    counted = set(rows.tolist()) - {without}
    for k in (10, 1000, store.n):
        found = [look.nearest(k), look.screened(k, 5.0), look.drawn(k, 5.0, (1, 2))]
        for (support,) in found:
            assert set(support.rows.tolist()) <= counted
            assert (np.diff(support.rows) > 0).all()
    assert (4 in look.nearest(1)[0].rows) == (without is None)


@pytest.mark.parametrize("sigma", [20.0, 2.0, 0.3])
def test_weights_are_unbiased(indexed, sigma, monkeypatch):
    """Both sums of the posterior mean are the full scan's on average, whatever is misjudged."""
    monkeypatch.setitem(sweeping.COMPARED, "drawn", (4, 300))
    store, looker = indexed.store, looker_of(indexed, numbers=indexed.sweep.first)
    look = looker.look(store.values(np.array([11]))[0])
    values = store.norms.astype(np.float64)
    drawn = [look.drawn(100, sigma, (seed, 1))[0] for seed in range(400)]
    counts = np.array([np.exp(s.log_weights).sum() for s in drawn])
    sums = np.array([np.exp(s.log_weights) @ values[s.rows] for s in drawn])
    for seen, exact in ((counts, store.n), (sums, values.sum())):
        assert abs(seen.mean() - exact) < 4 * seen.std() / np.sqrt(len(seen)) + 1e-6 * exact
    assert abs(np.mean([len(s) for s in drawn]) - 100) < 8


def test_something_is_always_drawn(indexed):
    look = looker_of(indexed).look(np.zeros(indexed.store.d, np.float32))
    assert all(len(look.drawn(1, 1.0, (seed,))[0]) for seed in range(20))


def test_a_query_s_images_do_not_depend_on_the_batch(indexed):
    store = indexed.store
    golden = GoldDiff(Optimal(store), AdaptiveSchedule(0.1, index=True))
    x = store.values(np.arange(11)) + np.random.default_rng(0).standard_normal(
        (11, store.d)
    ).astype(np.float32)
    for sigma in (8.0, 0.5):
        together = golden.schedule.supports(store, x, sigma, None, 3)
        for query, support in zip(x, together, strict=True):
            (alone,) = golden.schedule.supports(store, query[None], sigma, None, 3)
            assert np.array_equal(alone.rows, support.rows)


def test_past_the_memory_limit_clusters_are_opened(indexed):
    store = ImageStore.open(indexed.store.path, memory_limit=100_000)
    assert Index.open(store).sweep is None
    schedule = GoldDiff(Optimal(store), AdaptiveSchedule(0.1, index=True)).schedule
    assert isinstance(schedule.looker(1.0, None, Kind("screened")), IndexLooker)
    assert Kind("nearest") in ways_of(schedule, None, None)


def test_its_memory_counts_until_it_is_let_go(indexed):
    store = ImageStore.open(indexed.store.path)
    index = Index.open(store)
    index.screen.compare(store.values(np.array([0]))[0], np.array([1]))
    before = store.residency._kept  # the blocks
    assert index.sweep is index.sweep
    assert store.residency._kept == before + bytes_of(store.n, index.sweep.numbers)
    del index
    gc.collect()
    assert store.residency._kept == before


def test_coordinates_come_before_blocks_where_there_is_little_room(indexed):
    """With room for one of the two: without the sweep clusters would be opened."""
    n = indexed.store.n
    room = bytes_of(n, indexed.sweep.numbers) + indexed.screen.numbers * n // 2
    store = ImageStore.open(indexed.store.path, memory_limit=1.5 * room)
    schedule = GoldDiff(Optimal(store), AdaptiveSchedule(0.1, index=True)).schedule
    looker = schedule.looker(1.0, None, Kind("screened"))
    assert isinstance(looker, SweepLooker)
    x = store.values(np.array([3]))[0]
    whole = looker_of(indexed, numbers=indexed.sweep.first).look(x).screened(20, 1.0)[0].rows
    assert np.array_equal(looker.look(x).screened(20, 1.0)[0].rows, whole)
