"""Distances by the index's blocks, against the pixels'."""

import json

import numpy as np
import pytest

from golddiff import PCA, AdaptiveSchedule, GoldDiff, ImageStore, Optimal
from golddiff.adaptive.looking import IndexLooker
from golddiff.adaptive.plan import Kind, Plan
from golddiff.errors import StoreError
from golddiff.index import Index
from golddiff.support import TiledSupport


def test_distances_are_those_of_blocks(indexed):
    store = indexed.store
    values, rows = store.values(np.arange(store.n)), np.array([0, 7, 8, 2999])
    x = values[5] + np.float32(0.3)
    fit = indexed.screen._blocks
    goal, seen = fit.project(x), np.stack([fit.project(values[row]) for row in rows])
    exact = ((seen - goal) ** 2).sum(1) - (goal**2).sum()
    found = indexed.screen.compare(x, rows)
    # Each number is rounded to a multiple of its scale.
    off = np.linalg.norm(fit.scales) / 2
    most = 2 * off * (np.linalg.norm(goal) + np.linalg.norm(seen, axis=1).max() + off)
    assert np.abs(found.near - exact).max() < most
    assert np.corrcoef(found.near, exact)[0, 1] > 0.999
    rest = (values[rows] ** 2).sum(1) - (seen**2).sum(1)
    assert np.abs(found.rest - rest).max() < most


def test_what_is_written_is_what_blocks_see(indexed):
    store = indexed.store
    values = store.values(np.arange(store.n))
    flat = np.asarray(indexed.screen._flat)
    fit = indexed.screen._blocks
    assert np.array_equal(flat, fit.seen(np.ascontiguousarray(values.T)))


def test_they_follow_the_pixels_more_closely_than_coordinates_do(indexed):
    """Noise hides what few coordinates have of an image: of white images, as good as nothing."""
    store, rng = indexed.store, np.random.default_rng(1)
    values, rows = store.values(np.arange(store.n)), np.arange(store.n)
    x = (values[3] + rng.standard_normal(store.d)).astype(np.float32)
    exact = ((values - x) ** 2).sum(1)
    compared = indexed.screen.compare(x, rows)
    assert np.corrcoef(compared.near + compared.rest, exact)[0, 1] > 0.95


def test_too_large_for_the_limit_rows_are_read_one_by_one(indexed):
    store = ImageStore.open(indexed.store.path, memory_limit=100_000)
    rows, x = np.array([3, 100, 2000]), store.values(np.array([1]))[0]
    small = Index.open(store).screen
    assert np.array_equal(small.compare(x, rows).near, indexed.screen.compare(x, rows).near)


def test_opened_again_it_is_counted_once(indexed):
    store = ImageStore.open(indexed.store.path, memory_limit=10_000_000)
    first, second = Index.open(store).screen, Index.open(store).screen
    assert first._flat is second._flat
    assert store._residency._kept == first._flat.nbytes


def damaged(indexed, folder, change):
    import shutil

    shutil.copytree(indexed.store.path, folder / "store")
    change(folder / "store" / "index")
    return ImageStore.open(folder / "store")


@pytest.mark.parametrize("name", ["blocks.bin", "blocks.safetensors"])
def test_a_manifest_that_leaves_a_file_out_is_refused(indexed, tmp_path, name):
    """What it does not name nobody would look at: a link could lead anywhere."""

    def change(index):
        body = json.loads((index / "index.json").read_text())
        del body["files"][name]
        (index / "index.json").write_text(json.dumps(body))

    with pytest.raises(StoreError, match=f"lacks {name}"):
        Index.open(damaged(indexed, tmp_path, change))


@pytest.mark.parametrize("name", ["blocks.bin", "blocks.safetensors"])
def test_files_of_other_contents_are_refused(indexed, tmp_path, name):
    def change(index):
        (index / name).write_bytes(b"x" * 7)
        body = json.loads((index / "index.json").read_text())
        body["files"][name]["bytes"] = 7
        (index / "index.json").write_text(json.dumps(body))

    with pytest.raises(StoreError, match=f"{name} is damaged"):
        Index.open(damaged(indexed, tmp_path, change))


def test_screened_images_are_the_nearest_by_blocks(indexed):
    store = indexed.store
    looker = IndexLooker(indexed, None, np.ones((1, store.d), np.float32), None)
    x = store.values(np.array([9]))[0] + np.float32(0.1)
    (support,) = looker.look(x, None, 9).screened(20, 80.0)
    distances = indexed.screen.compare(x, np.arange(store.n)).near
    distances[9] = np.inf  # left out
    # A store this small is looked at as a whole, and at this noise no difference is too large.
    assert np.array_equal(support.rows, np.sort(np.argsort(distances)[:20]))


@pytest.mark.parametrize("sigma", [0.05, 0.5, 3.0])
def test_what_the_margin_leaves_out_weighs_nothing(indexed, sigma):
    store, rng = indexed.store, np.random.default_rng(2)
    values = store.values(np.arange(store.n))
    looker = IndexLooker(indexed, None, np.ones((1, store.d), np.float32), None)
    for row in range(20):
        x = (values[row] + sigma * rng.standard_normal(store.d)).astype(np.float32)
        logits = -((values - x).astype(np.float64) ** 2).sum(1) / (2 * sigma**2)
        weights = np.exp(logits - logits.max())
        (support,) = looker.look(x).screened(store.n, sigma)
        assert weights[support.rows].sum() > 0.99 * weights.sum()
    assert sigma > 0.1 or len(support.rows) < 0.1 * store.n


def test_a_plan_by_blocks_is_kept_and_followed(indexed):
    from golddiff.adaptive.memory import recall, remember

    store = indexed.store
    plan = Plan(Kind("screened"), 40, 0.01, 12.5)
    remember(store, "a plan of a test", plan)
    assert recall(store, "a plan of a test") == plan
    schedule = GoldDiff(Optimal(store), AdaptiveSchedule(0.05, index=True)).schedule
    schedule._plans[1.0, None] = plan
    x = store.values(np.array([0, 1]))
    supports = schedule.supports(store, x, 1.0, None, 0)
    assert all(1 <= len(s.rows) <= 40 for s in supports)
    assert all(row in s.rows for row, s in enumerate(supports))  # the images themselves
    assert schedule.predicted(1.0) > 0


def easy_to_hard(store, count, seed):
    """Queries of more and more noise, and a schedule over PCA that looks through the index."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((count, store.d)) * np.linspace(0.05, 3, count)[:, None]
    x = (store.values(np.arange(count)) + noise).astype(np.float32)
    return x, GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05, index=True)).schedule


def test_queries_that_an_eighth_of_the_images_tells_apart_are_weighed_with_all(indexed):
    """A plan's check, against the two means by themselves; the same alone and in a batch."""
    from golddiff.adaptive.memory import recall, remember

    store = indexed.store
    x, schedule = easy_to_hard(store, 6, seed=5)

    def supports(k, steady, queries=x):
        schedule._plans[1.0, None] = Plan(Kind("nearest", 4), k, 0.01, steady=steady)
        return schedule.supports(store, queries, 1.0, None, 0)

    estimator = schedule.estimator
    many, few = (estimator.denoise_over(x, 1.0, supports(k, None)) for k in (400, 50))
    moves = np.sqrt(((many - few) ** 2).mean(1))
    limit = float(np.median(moves))
    found = supports(400, limit)
    for query, move, support in zip(x, moves, found, strict=True):
        assert isinstance(support, TiledSupport) == (move <= limit)
        (alone,) = supports(400, limit, query[None])
        assert type(alone) is type(support)
        assert move <= limit or len(support.rows) == store.n
    assert sum(isinstance(support, TiledSupport) for support in found) == 3
    means = schedule.means(x, 1.0, None, 0)  # weighs what it checks by once
    assert np.abs(means - estimator.denoise_over(x, 1.0, found)).max() < 1e-5
    plan = schedule._plans[1.0, None]
    assert "(more where" in str(plan)
    remember(store, "checked", plan)
    assert recall(store, "checked") == plan
    assert schedule.predicted(1.0) > 0


def test_queries_that_are_not_settled_are_given_twice_as_many(indexed):
    """The first of k, 2 k, 4 k, ... whose mean an eighth of them has too; else all images."""
    store = indexed.store
    x, schedule = easy_to_hard(store, 8, seed=6)
    estimator = schedule.estimator

    def mean(query, k, of):
        looker = schedule.looker(1.0, None, Kind("nearest", 4))
        tiles = TiledSupport(4, looker.look(query).nearest(k, of))
        return estimator.denoise_over(query[None], 1.0, [tiles])[0]

    limit, sizes = 0.165, []
    schedule._plans[1.0, None] = Plan(Kind("nearest", 4), 5, 0.01, steady=limit)
    supports, means = (f(x) for f in (
        lambda x: schedule.supports(store, x, 1.0, None, 0),
        lambda x: schedule.means(x, 1.0, None, 0),
    ))  # fmt: skip
    for query, support, got in zip(x, supports, means, strict=True):
        moves = {
            k: float(np.sqrt(np.mean((mean(query, k, k) - mean(query, max(1, k // 8), k)) ** 2)))
            for k in (5, 10, 20, 40, 80, 160)
        }
        enough = [k for k, moved in moves.items() if moved <= limit]
        sizes.append(min(enough, default=store.n))
        if enough:
            assert isinstance(support, TiledSupport)
            assert {len(tile.rows) for tile in support.tiles} == {sizes[-1]}
            assert np.abs(got - mean(query, sizes[-1], sizes[-1])).max() < 1e-5
        else:
            assert len(support.rows) == store.n
    assert {5, store.n} < set(sizes)  # and some in between
