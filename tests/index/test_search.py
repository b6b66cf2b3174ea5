"""Distances are those of NumPy; the nearest are the nearest; draws stand for all images."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from golddiff.kernels.block_squares import block_of_each
from golddiff.noise import precision
from golddiff.supports.index.blocks import MIDDLE
from golddiff.supports.index.distances import IndexedBlocks, IndexedNumbers, TileBlocks
from golddiff.supports.index.drawing import GROUPS, drawn, groups, proposal, summary, uniform
from golddiff.supports.index.search import NeighborSearch
from golddiff.system.parallel import use_threads


@pytest.fixture(scope="module")
def x(indexed):
    rng = np.random.default_rng(0)
    values = indexed.store.values(np.arange(5))
    return values + rng.standard_normal(values.shape, np.float32)


@pytest.fixture(scope="module")
def relevance(indexed):
    return np.random.default_rng(1).random((3, indexed.store.d)).astype(np.float32)


@pytest.fixture(scope="module")
def metrics(indexed, relevance):
    return {
        "pixels": TileBlocks.of(indexed.store.shape, relevance),
        "index": IndexedBlocks.of(indexed, relevance),
        "whole": IndexedNumbers(indexed),
    }


def test_distances_by_pixels_are_weighed_squares(indexed, x, relevance, metrics):
    store, rows = indexed.store, np.arange(100, 400)
    block = block_of_each(store.shape)
    shares = np.stack([np.bincount(block, r) / np.bincount(block) for r in relevance])[:, block]
    squares = (store.values(rows).astype(np.float64) - x[:, None]) ** 2
    exact = np.einsum("td,qnd->qtn", shares, squares)
    found = metrics["pixels"].distances(store, x, rows)
    assert np.allclose(found, exact, rtol=1e-5)


def test_distances_by_the_index_are_those_of_its_bytes(indexed, x, relevance, metrics):
    rows, blocks = np.arange(100, 400), indexed.blocks
    z = (indexed.numbers[rows].astype(np.float64) - MIDDLE) * blocks.unit
    shares = relevance[:, blocks.columns].mean(axis=2).repeat(len(blocks.basis), axis=1)
    exact = np.einsum("td,qnd->qtn", shares, (z - blocks.project(x)[:, None]) ** 2)
    assert np.allclose(metrics["index"].distances(indexed.store, x, rows), exact, rtol=1e-4)


def test_distances_of_the_whole_image_are_those_of_all_blocks(indexed, x, metrics):
    rows, all_of_it = np.arange(100, 400), np.ones((1, indexed.store.d), np.float32)
    blocks = IndexedBlocks.of(indexed, all_of_it).distances(indexed.store, x, rows)
    assert np.allclose(metrics["whole"].distances(indexed.store, x, rows), blocks, rtol=1e-4)


@pytest.mark.parametrize("name", ["pixels", "index", "whole"])
def test_a_distance_is_its_query_s_and_image_s_alone(indexed, x, metrics, name):
    """Whatever the batch, the rows beside it and the threads: to the bit."""
    store, metric = indexed.store, metrics[name]
    whole = metric.distances(store, x, np.arange(3000))
    for query, rows in ((slice(1, 2), np.arange(7, 3000, 3)), (slice(2, 5), np.array([5, 2999]))):
        use_threads(1)
        some = metric.distances(store, x[query], rows)
        use_threads(2)
        assert np.array_equal(some, whole[query][:, :, rows])


@pytest.mark.parametrize("name", ["pixels", "index"])
def test_rings_are_the_images_by_rank(indexed, x, metrics, name):
    store, rows = indexed.store, np.arange(0, 3000, 2)
    search = NeighborSearch(store, metrics[name], x, rows, 1.0)
    distances = metrics[name].distances(store, x, rows)
    for first, stop in ((0, 5), (5, 64), (64, 1400), (1400, 1500)):
        found = search.rings(3, dict.fromkeys(range(3), (first, stop)))
        for t, ring in found.items():
            exact = rows[np.lexsort((rows, distances[3, t]))[first:stop]]
            assert np.array_equal(ring, np.sort(exact))


def test_of_equals_the_first_come_first(make_store):
    store = make_store(np.full((50, 1, 4, 4), 9, np.uint8))
    metric = TileBlocks.of(store.shape, np.ones((1, 16), np.float32))
    search = NeighborSearch(store, metric, np.zeros((1, 16), np.float32), np.arange(50), 1.0)
    assert np.array_equal(search.rings(0, {0: (0, 7)})[0], np.arange(7))


def test_random_numbers_are_uniform_and_hang_on_the_row_alone():
    all_rows, some = np.arange(100_000), np.array([5, 99_999])
    numbers, group = uniform((3, 1), all_rows), groups((4, 1), all_rows)
    assert np.array_equal(uniform((3, 1), some), numbers[some])
    assert np.array_equal(groups((4, 1), some), group[some])
    assert 0 <= numbers.min() < numbers.max() < 1
    assert np.abs(np.histogram(numbers, 20, (0, 1))[0] - 5000).max() < 400
    assert np.abs(np.bincount(group, minlength=GROUPS) - 25_000).max() < 700
    for other in (uniform((3, 2), all_rows), group):
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.02


def sums(distances, gain):
    return summary(distances[None], gain)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(0, 300), st.floats(0.01, 30), st.integers(0, 10**6))
def test_sums_of_parts_are_those_of_all(a, b, gain, seed):
    distances = np.random.default_rng(seed).gamma(2, size=(3, a + b)).astype(np.float32)
    whole = summary(distances, gain)
    first, second = (summary(part.copy(), gain) for part in np.split(distances, [a], axis=1))
    parts = first.merge(second, gain)
    assert np.array_equal(parts.best, whole.best)
    for name in ("exact", "squares", "tempered", "images", "effective"):
        assert np.allclose(getattr(parts, name), getattr(whole, name), rtol=1e-4)
    w = np.exp(-gain * (distances.astype(np.float64) - whole.best[:, None]))
    assert whole.effective == pytest.approx(np.mean(w.sum(1) ** 2 / (w**2).sum(1)), rel=1e-3)
    assert proposal(distances, gain, whole).sum() == pytest.approx(1, rel=1e-3)


def test_a_tile_s_images_are_drawn_though_the_others_see_them_far_away():
    distances = np.full((4, 1000), 50, np.float32)
    distances[2, 17] = 0
    share = proposal(distances, 1.0, summary(distances, 1.0))
    assert share[17] == share.max() > 0.2


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0])
def test_draws_stand_for_all_images(sigma):
    """The mean over many draws of the sums over what was drawn is the sum over all."""
    rng = np.random.default_rng(0)
    distances = rng.gamma(3, size=2000).astype(np.float32)
    rows, gain = np.arange(2000), precision(sigma)
    share = proposal(distances[None], gain, sums(distances, gain))
    values = rng.random(2000)
    made = []
    for turn in range(400):
        some = drawn(share, rows, 100, uniform((turn,), rows))
        assert (some.log_weights >= 0).all()
        made.append((values[some.rows] * np.exp(some.log_weights)).sum())
    error = np.std(made) / 20
    assert abs(np.mean(made) - values.sum()) < 4 * error
    assert len(some.rows) < 160


def test_what_decides_is_sure():
    distances = np.full(1000, 50, np.float32)
    distances[[3, 77]] = 0
    rows, share = np.arange(1000), proposal(distances[None], 1.0, sums(distances, 1.0))
    for turn in range(20):
        some = drawn(share, rows, 20, uniform((turn,), rows))
        assert {3, 77} <= set(some.rows[some.log_weights == 0].tolist())


def test_no_images_have_no_weight():
    empty = sums(np.empty(0, np.float32), 1.0)
    some = sums(np.array([1.0, 2.0], np.float32), 1.0)
    for merged in (empty.merge(some, 1.0), some.merge(empty, 1.0)):
        assert all(np.array_equal(a, vars(some)[name]) for name, a in vars(merged).items())
