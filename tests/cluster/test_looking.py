"""What queries see of all shards, and what is measured and kept there, is the single store's."""

import numpy as np
import pytest

import golddiff
from golddiff.adaptive.looking import LinearLooker
from golddiff.adaptive.places import Place, mean_over_tiles, means_at
from golddiff.adaptive.plan import Kind, Plan
from golddiff.adaptive.schedule import lattice
from golddiff.bench.work import ranking_work
from golddiff.cluster import ShardedStore
from golddiff.estimators import kept_masks
from golddiff.index import Index
from golddiff.store.images import ImageStore
from golddiff.store.statistics import covariance_factor, factor_rows

SIGMA, K = 1.0, 60


@pytest.fixture(scope="module")
def sharded(two):
    return two


@pytest.fixture(scope="module")
def schedules(sharded, digits):
    """The adaptive schedule of PCA over the single store, and over the shards."""
    return [golddiff.AdaptiveSchedule(0.05).fitted(golddiff.PCA(s)) for s in (digits, sharded)]


def agree(mine, theirs):
    for one, many in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(many.rows, one.rows)
        np.testing.assert_allclose(many.log_importance(), one.log_importance(), atol=1e-5)


@pytest.mark.parametrize("label", [None, 4])
@pytest.mark.parametrize("side", [None, 4])
def test_looks_see_a_single_stores_images(schedules, digits, queries, side, label):
    x = queries(digits, SIGMA, 2).reshape(2, -1).numpy()
    # One in the first shard, one in the last; neither left out of a look of all.
    rows = [None, int(digits.rows_of(label)[1]), int(digits.rows_of(label)[-2])]
    tiles = None if side is None else [0, 3]
    one, many = (s.looker(SIGMA, label, Kind("nearest", side)) for s in schedules)
    assert isinstance(one, LinearLooker)
    assert (many.tiles, many.images) == (one.tiles, one.images)
    assert (many.work("drawn", K), many.counted("drawn", K)) == (
        one.work("drawn", K),
        one.counted("drawn", K),
    )
    cases = [(query, row) for query in x for row in rows]
    mine, theirs = ([looker.look(q, tiles, row) for q, row in cases] for looker in (one, many))
    for number, (a, b, (_, row)) in enumerate(zip(mine, theirs, cases, strict=True)):
        agree(a.nearest(K), b.nearest(K))
        stream = (1, number, 7)
        found = b.drawn(K, 2 * SIGMA, stream)  # not the noise level that ranks
        agree(a.drawn(K, 2 * SIGMA, stream), found)
        assert all(row not in support.rows for support in found)


def test_means_at_some_tiles_are_the_single_stores(schedules, sharded, digits, queries):
    x = queries(digits, SIGMA, 2).reshape(2, -1).numpy()
    places = [Place(digits.shape, 4, (1, 2)), Place(digits.shape, 4, (3,))]
    everything = [[store.everything(None, row) for row in (5, None)] for store in (digits, sharded)]
    estimators = [golddiff.PCA(digits), golddiff.PCA(sharded)]
    one, many = (
        means_at(estimator, x, SIGMA, places, supports)
        for estimator, supports in zip(estimators, everything, strict=True)
    )
    for a, b in zip(one, many, strict=True):
        np.testing.assert_allclose(b, a, atol=1e-5)
    means = []
    for estimator, schedule in zip(estimators, schedules, strict=True):
        look = schedule.looker(SIGMA, None, Kind("nearest", 4)).look(x[0], [1, 2])
        supports = look.nearest(K)
        means += [mean_over_tiles(estimator, x[0], SIGMA, places[0], 4, supports)]
        # Supports that were not chosen together: listed row by row.
        apart = [supports[0], schedule.looker(SIGMA, None, Kind("drawn", 4)).look(x[0]).nearest(K)]
        mixed = [(0, 1, apart[0]), (0, 2, apart[1][3])]
        means += [estimator.tile_means(x[:1], SIGMA, 4, mixed)]
    np.testing.assert_allclose(means[2], means[0], atol=1e-5)
    np.testing.assert_allclose(means[3], means[1], atol=1e-5)


def test_what_a_schedule_tells_is_the_single_stores(schedules, digits, queries):
    for kind in (Kind("nearest", 4), Kind("drawn")):
        for schedule in schedules:
            schedule._plans[lattice(SIGMA), None] = Plan(kind, K, 0.05)
        one, many = schedules
        assert many.is_known(SIGMA)
        assert many.describe(SIGMA) == one.describe(SIGMA)
        assert many.predicted(SIGMA) == one.predicted(SIGMA)
        assert many.budgets(SIGMA, digits.n) == one.budgets(SIGMA, digits.n)
        assert ranking_work(many, SIGMA, 2) == ranking_work(one, SIGMA, 2)


@pytest.mark.parametrize("name", ["index", "guarantee"])
def test_an_index_and_a_proof_take_a_single_store(sharded, name):
    schedule = golddiff.AdaptiveSchedule(0.05, **{name: True})
    with pytest.raises(golddiff.ArgumentError, match=f"{name}: got True.*single store"):
        golddiff.GoldDiff(golddiff.Optimal(sharded), schedule)
    assert golddiff.GoldDiff(
        golddiff.Optimal(sharded), golddiff.AdaptiveSchedule(0.05, index=False)
    )


def test_what_else_takes_a_single_store_says_so(sharded):
    golden = golddiff.GoldDiff(golddiff.Optimal(sharded))
    with pytest.raises(golddiff.ArgumentError, match=r"certified: .*single store"):
        golden.certified(sharded.images([0]), 1.0)
    with pytest.raises(golddiff.ArgumentError, match=r"single store .*not of one in shards"):
        Index.build(sharded)


def test_a_factor_is_of_the_images_that_a_single_stores_is_of(two, digits, tmp_path, monkeypatch):
    rows = factor_rows(digits.rows_of(None), digits.d, 300, 5)
    expected = covariance_factor(digits.flat, digits.scale, digits.offset, rows)
    monkeypatch.setattr(two, "path", tmp_path)
    whole = golddiff.PCA(two).denoise(np.ones((1, two.d), np.float32), 1.0, None)
    seen = []
    factor = two.estimate_factor(300, 5, seen.append)
    assert factor.images == 300
    assert seen == [300]
    np.testing.assert_allclose(factor.mean, expected.mean, atol=1e-12)
    np.testing.assert_allclose(factor.eigenvalues, expected.eigenvalues, atol=1e-12)
    # The shards weigh with it, and what is kept is found again.
    other = golddiff.PCA(two).denoise(np.ones((1, two.d), np.float32), 1.0, None)
    assert np.abs(other - whole).max() > 1e-4
    assert golddiff.Wiener(two)(two.images([0]), 1.0).isfinite().all()
    two._factors.clear()
    assert two.has_factor()
    assert two.factor_images == 300
    assert two._factors == {}  # a gigabyte and more at 64 x 64, not read for this
    assert "masks of 300 images" in golddiff.PCA(two).signature()
    assert two._factors == {}
    assert two.factor().images == 300
    with pytest.raises(golddiff.ArgumentError, match="images: got 1"):
        two.estimate_factor(1)
    # All of them again, for those shards too that have weighed with the other.
    assert two.estimate_factor(two.n).images == two.n
    again = golddiff.PCA(two).denoise(np.ones((1, two.d), np.float32), 1.0, None)
    np.testing.assert_allclose(again, whole, atol=1e-6)


def test_masks_are_kept_beside_the_list_and_the_shards(coloured, patches):
    made = kept_masks.tree_of(coloured, SIGMA, 0.02)
    single = kept_masks.tree_of(patches, SIGMA, 0.02)
    np.testing.assert_array_equal(made.inputs, single.inputs)
    assert kept_masks.path_in(coloured.path, SIGMA, 0.02).parent == coloured.path / "masks"
    assert kept_masks.recall(coloured, SIGMA, 0.02) is not None
    golddiff.PCA(coloured).denoise(np.ones((1, coloured.d), np.float32), SIGMA, None)
    for path in coloured.paths:
        shard = ImageStore.open(path)
        assert kept_masks.path_in(shard.path, SIGMA, 0.02).is_file()
        # They are of all shards' covariance, which the shard by itself does not have.
        assert kept_masks.recall(shard, SIGMA, 0.02) is None


def test_shards_may_be_larger_than_memory(coloured, patches, queries):
    x = queries(patches, SIGMA, 1)
    assert coloured.memory_limit == 50_000
    for make in (golddiff.PCA, lambda s: golddiff.GoldDiff(golddiff.Optimal(s))):
        assert (make(coloured)(x, SIGMA) - make(patches)(x, SIGMA)).abs().max() < 1e-5
    assert coloured.factor().images == patches.n
    with pytest.raises(golddiff.ArgumentError, match="memory_limit: got 0, expected bytes above 0"):
        ShardedStore.open(coloured.paths, memory_limit=0)
