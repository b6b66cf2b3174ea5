"""What is found through the index, against comparing every image."""

import numpy as np
import pytest

from golddiff import PCA
from golddiff.errors import StoreError
from golddiff.index import nearest
from golddiff.index.drawing import draw, uniform
from golddiff.index.search import Near, Sight, checked, sight_of
from golddiff.kernels.mask_tiles import OfChannel
from golddiff.kernels.members import weighed_distances


def test_weighed_distances_are_those_of_numpy():
    rng = np.random.default_rng(0)
    for n, r, s in ((1, 3, 2), (5, 16, 16), (64, 7, 30)):
        z = rng.integers(-127, 128, (n, r)).astype(np.int8)
        turn, goal = rng.standard_normal((r, s)), rng.standard_normal(s)
        exact = ((z @ turn - goal) ** 2).sum(1)
        got = weighed_distances(z, turn.astype(np.float32), goal.astype(np.float32))
        assert np.allclose(got, exact, rtol=1e-5)


def test_most_of_the_nearest_are_found(indexed):
    store = indexed.store
    x = store.values(np.arange(20)) + np.float32(0.3) * np.random.default_rng(0).standard_normal(
        (20, store.d), np.float32
    )
    exact = ((x[:, None] - store.values(np.arange(store.n))[None]) ** 2).sum(-1)
    found = nearest(indexed, x, 30, members=1500)
    shares = [
        np.isin(np.argsort(row)[:30], rows).mean() for row, rows in zip(exact, found, strict=True)
    ]
    assert np.mean(shares) > 0.8
    assert all(np.argmin(row) in rows for row, rows in zip(exact, found, strict=True))


def test_all_members_are_all_images(indexed):
    x = np.zeros((1, indexed.store.d), np.float32)
    (rows,) = nearest(indexed, x, indexed.store.n, members=indexed.store.n)
    assert np.array_equal(rows, np.arange(indexed.store.n))


@pytest.mark.parametrize(("side", "sigma"), [(None, 2.0), (8, 0.5), (OfChannel(8), 0.5), (4, 0.2)])
def test_estimated_distances_follow_the_mean_logits(indexed, side, sigma):
    """Against the exact sum over a tile's relevance, which needs the pixels."""
    store = indexed.store
    relevance = PCA(store, 0.05).relevance(sigma, side)
    x = store.values(np.array([7]))[0] + np.float32(0.1)
    values = store.values(np.arange(store.n))
    for t in (0, len(relevance) - 1):
        near = sight_of(indexed, side, t, relevance[t]).look(x, store.n)
        exact = ((x - values[near.rows]) ** 2) @ relevance[t]
        assert np.corrcoef(exact, near.distances)[0, 1] > 0.95


def test_a_closed_cluster_s_distance_is_its_members_mean(indexed):
    store = indexed.store
    sight = Sight(indexed.views[None], 0, np.ones(store.d, np.float32))
    x = store.values(np.array([3]))[0]
    whole, near = sight.look(x, store.n), sight.look(x, 1)
    assert len(near.closed) > 0
    for cluster, far in zip(near.closed, near.far, strict=True):
        members = sight.run(int(cluster), 0, int(sight.sizes[cluster]))
        mean = whole.distances[np.isin(whole.rows, members)].mean()
        assert np.isclose(far, mean, rtol=0.02)


def test_uniform_numbers_are_uniform_and_repeat():
    numbers = uniform(5, np.arange(100_000))
    assert np.array_equal(numbers, uniform(5, np.arange(100_000)))
    assert not np.array_equal(numbers, uniform(6, np.arange(100_000)))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, 20, (0, 1))[0]
    assert (np.abs(counts - 5000) < 5 * np.sqrt(5000)).all()
    pairs = uniform(6, np.arange(100_000))
    assert abs(np.corrcoef(numbers, pairs)[0, 1]) < 0.02


def test_weights_are_unbiased(indexed):
    """The sum of 1 / p over what is drawn is the number of images on average."""
    store = indexed.store
    sight = Sight(indexed.views[None], 0, np.ones(store.d, np.float32))
    x = store.values(np.array([11]))[0]
    values = store.norms.astype(np.float64)
    for sigma, members in ((20.0, 100), (2.0, 400), (0.5, 1200)):
        near = sight.look(x, members)
        drawn = [draw(sight, near, 1.0, 150, sigma, key) for key in range(600)]
        counts = np.array([np.exp(s.log_weights).sum() for s in drawn])
        sums = np.array([np.exp(s.log_weights) @ values[s.rows] for s in drawn])
        for seen, exact in ((counts, store.n), (sums, values.sum())):
            assert abs(seen.mean() - exact) < 4 * seen.std() / np.sqrt(len(seen)) + 1e-6 * exact
        assert abs(np.mean([len(s) for s in drawn]) - 150) < 8
        for support in drawn[:5]:
            assert (np.diff(support.rows) > 0).all()


def test_rows_outside_the_store_are_refused(indexed):
    with pytest.raises(StoreError, match="damaged"):
        checked(np.array([0, indexed.store.n]), indexed.store)


def test_something_is_always_drawn(indexed):
    sight = Sight(indexed.views[None], 0, np.ones(indexed.store.d, np.float32))
    near = sight.look(np.zeros(indexed.store.d, np.float32), 100)
    alone = Near(near.rows[:1], near.distances[:1], near.closed[:0], near.far[:0])
    assert list(draw(sight, alone, 1.0, 1, 1.0, 0).rows) == [near.rows[0]]
