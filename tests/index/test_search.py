"""What is found through the index, against comparing every image."""

import numpy as np
import pytest

from golddiff import PCA
from golddiff.errors import StoreError
from golddiff.index import nearest
from golddiff.index.drawing import draw, uniform
from golddiff.index.search import Near, Sight, checked, sight_of
from golddiff.kernels.mask_tiles import OfChannel
from golddiff.kernels.members import scaled_distances, weighed_distances


def test_weighed_distances_are_those_of_numpy():
    rng = np.random.default_rng(0)
    for n, r, s in ((1, 3, 2), (5, 16, 16), (64, 7, 30)):
        z = rng.integers(-127, 128, (n, r)).astype(np.int8)
        turn, goal = rng.standard_normal((r, s)), rng.standard_normal(s)
        exact = ((z @ turn - goal) ** 2).sum(1)
        got = weighed_distances(z, turn.astype(np.float32), goal.astype(np.float32))
        assert np.allclose(got, exact, rtol=1e-5)
        scale, goal = rng.random(r).astype(np.float32), rng.standard_normal(r).astype(np.float32)
        exact = ((z * scale.astype(np.float64) - goal) ** 2).sum(1)
        assert np.allclose(scaled_distances(z, scale, goal), exact, rtol=1e-5)


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


def test_equal_shares_need_no_matrix(indexed):
    """Where all inputs count alike, or nearly, the matrix gives the same distances."""
    store = indexed.store
    whole, x = indexed.views[None], store.values(np.array([5]))[0]
    shares = np.full(store.d, 0.3, np.float32)
    nearly = shares * (1 + 1e-4 * np.random.default_rng(0).random(store.d, np.float32))
    plain, turned = (Sight(whole, 0, s).look(x, store.n) for s in (shares, nearly))
    assert np.array_equal(plain.rows, turned.rows)
    less = plain.distances - plain.distances.mean(), turned.distances - turned.distances.mean()
    assert np.abs(less[0] - less[1]).max() < 0.05 * less[0].std()  # it leaves out what varies least
    assert Sight(whole, 0, shares).numbers < Sight(whole, 0, nearly).numbers


def test_runs_go_around_the_end_of_their_cluster(indexed):
    sight = Sight(indexed.views[None], 0, np.ones(indexed.store.d, np.float32))
    cluster = int(np.flatnonzero(sight.sizes > 3)[-1])
    first = int(np.cumsum(sight.sizes)[cluster - 1]) if cluster else 0
    size = int(sight.sizes[cluster])
    runs = sight.runs(np.array([cluster]), np.array([size - 1]), np.array([3]))
    assert runs.tolist() == [[first + size - 1, first + size], [first, first + 2]]


def test_a_closed_cluster_s_distance_is_its_members_mean(indexed):
    store = indexed.store
    sight = Sight(indexed.views[None], 0, np.ones(store.d, np.float32))
    x = store.values(np.array([3]))[0]
    whole, near = sight.look(x, store.n), sight.look(x, 1)
    assert len(near.closed) > 0
    for cluster, far in zip(near.closed, near.far, strict=True):
        one = np.array([cluster])
        members, _ = sight.members(near.goal, sight.runs(one, 0 * one, sight.sizes[one]))
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


def all_count(rows):
    return np.ones(len(rows), bool)


def test_weights_are_unbiased(indexed):
    """The sum of 1 / p over what is drawn is the number of images on average."""
    store = indexed.store
    sight = Sight(indexed.views[None], 0, np.ones(store.d, np.float32))
    x = store.values(np.array([11]))[0]
    values = store.norms.astype(np.float64)
    for sigma, members in ((20.0, 100), (2.0, 400), (0.5, 1200)):
        near = sight.look(x, members)
        drawn = [draw(sight, near, all_count, 150, sigma, key) for key in range(600)]
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
    alone = Near(near.rows[:1], near.distances[:1], near.closed[:0], near.far[:0], near.goal)
    assert list(draw(sight, alone, all_count, 1, 1.0, 0).rows) == [near.rows[0]]
