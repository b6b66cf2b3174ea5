"""Distances and ranks agree with NumPy; weighted sums over random draws are unbiased."""

from functools import reduce

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


def test_pixel_distances_are_weighted_sums_of_squares(indexed, x, relevance, metrics):
    store, rows = indexed.store, np.arange(100, 400)
    block = block_of_each(store.shape)
    shares = np.stack([np.bincount(block, r) / np.bincount(block) for r in relevance])[:, block]
    squares = (store.values(rows).astype(np.float64) - x[:, None]) ** 2
    exact = np.einsum("td,qnd->qtn", shares, squares)
    distances = metrics["pixels"].distances(store, x, rows)
    assert np.allclose(distances, exact, rtol=1e-5)


def test_index_distances_are_those_of_its_decoded_bytes(indexed, x, relevance, metrics):
    rows, blocks = np.arange(100, 400), indexed.blocks
    z = (indexed.numbers[rows].astype(np.float64) - MIDDLE) * blocks.unit
    shares = relevance[:, blocks.columns].mean(axis=2).repeat(len(blocks.basis), axis=1)
    exact = np.einsum("td,qnd->qtn", shares, (z - blocks.project(x)[:, None]) ** 2)
    assert np.allclose(metrics["index"].distances(indexed.store, x, rows), exact, rtol=1e-4)


def test_whole_image_distances_are_those_of_all_blocks_weighted_equally(indexed, x, metrics):
    rows, equal_relevance = np.arange(100, 400), np.ones((1, indexed.store.d), np.float32)
    expected = IndexedBlocks.of(indexed, equal_relevance).distances(indexed.store, x, rows)
    assert np.allclose(metrics["whole"].distances(indexed.store, x, rows), expected, rtol=1e-4)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["pixels", "index", "whole"])
def test_a_distance_depends_only_on_its_query_and_image(indexed, x, metrics, name):
    """Exactly, for any batch, set of rows and number of threads."""
    store, metric = indexed.store, metrics[name]
    whole = metric.distances(store, x, np.arange(3000))
    for query, rows in ((slice(1, 2), np.arange(7, 3000, 3)), (slice(2, 5), np.array([5, 2999]))):
        use_threads(1)
        part = metric.distances(store, x[query], rows)
        use_threads(2)
        assert np.array_equal(part, whole[query][:, :, rows])


@pytest.mark.parametrize("name", ["pixels", "index"])
def test_rings_are_the_images_in_a_range_of_ranks(indexed, x, metrics, name):
    store, rows = indexed.store, np.arange(0, 3000, 2)
    search = NeighborSearch(store, metrics[name], x, rows, 1.0)
    distances = metrics[name].distances(store, x, rows)
    for first, stop in ((0, 5), (5, 64), (64, 1400), (1400, 1500)):
        rings = search.rings(3, dict.fromkeys(range(3), (first, stop)))
        for t, ring in rings.items():
            expected = rows[np.lexsort((rows, distances[3, t]))[first:stop]]
            assert np.array_equal(ring, np.sort(expected))


def test_ties_go_to_the_lower_row(make_store):
    store = make_store(np.full((50, 1, 4, 4), 9, np.uint8))
    metric = TileBlocks.of(store.shape, np.ones((1, 16), np.float32))
    search = NeighborSearch(store, metric, np.zeros((1, 16), np.float32), np.arange(50), 1.0)
    assert np.array_equal(search.rings(0, {0: (0, 7)})[0], np.arange(7))


def test_random_numbers_are_uniform_and_depend_on_the_row_alone():
    all_rows, two_rows = np.arange(100_000), np.array([5, 99_999])
    numbers, group = uniform((3, 1), all_rows), groups((4, 1), all_rows)
    assert np.array_equal(uniform((3, 1), two_rows), numbers[two_rows])
    assert np.array_equal(groups((4, 1), two_rows), group[two_rows])
    assert 0 <= numbers.min() < numbers.max() < 1
    assert np.abs(np.histogram(numbers, 20, (0, 1))[0] - 5000).max() < 400
    assert np.abs(np.bincount(group, minlength=GROUPS) - 25_000).max() < 700
    for other in (uniform((3, 2), all_rows), group):
        assert abs(np.corrcoef(numbers, other)[0, 1]) < 0.02


def sums(distances, gain):
    return summary(distances[None], gain)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(0, 300), st.floats(0.01, 30), st.integers(0, 10**6))
def test_merged_sums_of_parts_equal_the_sums_of_all_images(a, b, gain, seed):
    distances = np.random.default_rng(seed).gamma(2, size=(3, a + b)).astype(np.float32)
    whole = summary(distances, gain)
    each = np.split(distances, [0, 0, a], axis=1)  # two shards may lack a class
    first, *others = (summary(part.copy(), gain) for part in each)
    parts = reduce(lambda merged, part: merged.merge(part, gain), others, first)
    assert np.array_equal(parts.best, whole.best)
    for name in ("exact", "squares", "tempered", "images", "effective"):
        assert np.allclose(getattr(parts, name), getattr(whole, name), rtol=1e-4)
    w = np.exp(-gain * (distances.astype(np.float64) - whole.best[:, None]))
    assert whole.effective == pytest.approx(np.mean(w.sum(1) ** 2 / (w**2).sum(1)), rel=1e-3)
    assert proposal(distances, gain, whole).sum() == pytest.approx(1, rel=1e-3)


def test_an_image_near_in_only_one_tile_has_the_largest_share():
    distances = np.full((4, 1000), 50, np.float32)
    distances[2, 17] = 0
    share = proposal(distances, 1.0, summary(distances, 1.0))
    assert share[17] == share.max() > 0.2


@pytest.mark.parametrize("sigma", [0.3, 1.0, 5.0])
def test_weighted_sums_over_draws_are_unbiased(sigma):
    """The mean over many draws of their weighted sums is the sum over all images."""
    rng = np.random.default_rng(0)
    distances = rng.gamma(3, size=2000).astype(np.float32)
    rows, gain = np.arange(2000), precision(sigma)
    share = proposal(distances[None], gain, sums(distances, gain))
    values = rng.random(2000)
    estimates = []
    for draw in range(400):
        support = drawn(share, rows, 100, uniform((draw,), rows))
        assert (support.log_weights >= 0).all()
        estimates.append((values[support.rows] * np.exp(support.log_weights)).sum())
    error = np.std(estimates) / 20
    assert abs(np.mean(estimates) - values.sum()) < 4 * error
    assert len(support.rows) < 160


def test_images_that_dominate_are_always_drawn_with_weight_one():
    distances = np.full(1000, 50, np.float32)
    distances[[3, 77]] = 0
    rows, share = np.arange(1000), proposal(distances[None], 1.0, sums(distances, 1.0))
    for draw in range(20):
        support = drawn(share, rows, 20, uniform((draw,), rows))
        assert {3, 77} <= set(support.rows[support.log_weights == 0].tolist())


def test_merging_sums_of_no_images_changes_nothing():
    empty = sums(np.empty(0, np.float32), 1.0)
    two_images = sums(np.array([1.0, 2.0], np.float32), 1.0)
    for merged in (empty.merge(two_images, 1.0), two_images.merge(empty, 1.0)):
        assert all(np.array_equal(a, vars(two_images)[name]) for name, a in vars(merged).items())
