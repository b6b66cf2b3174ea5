"""A store in shards gives a single store's images."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.adaptive.plan import Kind, Plan
from golddiff.adaptive.schedule import lattice
from golddiff.cluster import ShardedStore
from golddiff.noise import ddim_sigmas

TOLERANCE = 1e-5
SHARDS = (1, 2, 4, 7)


@pytest.fixture(scope="module", params=SHARDS)
def sharded(request, cluster, digits, cut):
    if request.param == 2:
        yield request.getfixturevalue("two")
        return
    with ShardedStore.open(cut(digits, request.param), patience=600.0) as store:
        yield store


METHODS = {
    "optimal": lambda s: golddiff.Optimal(s),
    "pca": lambda s: golddiff.PCA(s),
    "pca wss": lambda s: golddiff.PCA(s, weighting="wss"),
    "kamb": lambda s: golddiff.Kamb(s, 3),
    "wiener": lambda s: golddiff.Wiener(s),
}
SCHEDULES = {
    "text": lambda: golddiff.PaperSchedule(),
    "released": lambda: golddiff.PaperSchedule(variant="released"),
}


def close(a, b):
    return float((a - b).abs().max()) <= TOLERANCE


@pytest.mark.parametrize("method", METHODS)
def test_a_full_scan_is_the_single_stores(sharded, digits, method):
    make = METHODS[method]
    one = golddiff.sample(make(digits), 3)
    many = golddiff.sample(make(sharded), 3)
    assert close(one.trajectory, many.trajectory)
    assert many.share == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", ["optimal", "pca", "pca wss", "kamb"])
def test_a_golden_support_is_the_single_stores(sharded, digits, method, schedule):
    if method in ("pca wss", "kamb") and len(sharded.paths) != 4:
        pytest.skip("one number of shards is enough for these")
    one, many = (
        golddiff.GoldDiff(METHODS[method](store), SCHEDULES[schedule]())
        for store in (digits, sharded)
    )
    assert close(golddiff.sample(one, 3).trajectory, golddiff.sample(many, 3).trajectory)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rows_chosen_are_the_single_stores(sharded, digits, schedule, queries):
    # Pooled to 2 x 2, many digits are at exactly the same distance: the cut has ties.
    one, many = (
        golddiff.GoldDiff(golddiff.Optimal(store), SCHEDULES[schedule]())
        for store in (digits, sharded)
    )
    for sigma in (0.1, 2.0, 30.0):
        x = queries(digits, sigma, 3)
        for label in (None, 4):
            pairs = zip(one.supports(x, sigma, label), many.supports(x, sigma, label), strict=True)
            for mine, theirs in pairs:
                np.testing.assert_array_equal(mine.rows, theirs.rows)
                assert theirs.log_weights is None
                assert len(theirs) == len(mine)


@pytest.mark.parametrize(
    "kind", [Kind("drawn"), Kind("nearest"), Kind("drawn", 4), Kind("nearest", 4)], ids=str
)
@pytest.mark.parametrize("method", ["optimal", "pca"])
def test_an_adaptive_plan_chooses_the_single_stores_images(sharded, digits, method, kind):
    if kind.side is not None and method == "optimal":
        pytest.skip("it has one location")
    one, many = (
        golddiff.GoldDiff(METHODS[method](store), golddiff.AdaptiveSchedule(0.05), seed=3)
        for store in (digits, sharded)
    )
    for sigma in ddim_sigmas(10):
        for denoiser in (one, many):
            denoiser.schedule._plans[lattice(sigma), None] = Plan(kind, 100, 0.05)
    assert close(golddiff.sample(one, 3).trajectory, golddiff.sample(many, 3).trajectory)


def test_adaptive_plans_are_measured_alike(sharded, digits):
    if len(sharded.paths) != 2:
        pytest.skip("one number of shards is enough")
    one, many = (
        golddiff.GoldDiff(golddiff.PCA(store), golddiff.AdaptiveSchedule(0.1))
        for store in (digits, sharded)
    )
    for sigma in (0.3, 30.0):
        mine, theirs = one.schedule.plan(sigma), many.schedule.plan(sigma)
        assert (mine.kind, mine.k) == (theirs.kind, theirs.k)
        assert mine.error == pytest.approx(theirs.error, rel=1e-4)
    # And against other schedules' errors.
    against = golddiff.AdaptiveSchedule(golddiff.PaperSchedule())
    plans = [against.fitted(golddiff.Optimal(store)).plan(1.0) for store in (digits, sharded)]
    assert (plans[0].kind, plans[0].k) == (plans[1].kind, plans[1].k)


def test_classes_are_the_single_stores(sharded, digits):
    assert sharded.class_counts() == digits.class_counts()
    for label in (0, 7):
        for make in (golddiff.PCA, golddiff.Wiener):
            one, many = (golddiff.sample(make(s), 2, 4, labels=label) for s in (digits, sharded))
            assert close(one.images, many.images)
    np.testing.assert_array_equal(sharded.rows_of(7), digits.rows_of(7))
    with pytest.raises(golddiff.ArgumentError, match="a class with no images"):
        golddiff.Optimal(sharded)(torch.zeros(1, 1, 8, 8), 1.0, 11)


def test_a_class_that_only_one_shard_has(halves, many, queries):
    x = queries(many, 1.0, 1)
    for make in (
        golddiff.PCA,
        lambda s: golddiff.Kamb(s, 3),
        lambda s: golddiff.GoldDiff(golddiff.Optimal(s)),
    ):
        assert close(make(many)(x, 1.0, 1), make(halves)(x, 1.0, 1))


def test_colour_images_without_labels(coloured, patches, queries):
    x = queries(patches, 1.0, 2)
    for make in (
        lambda s: golddiff.PCA(s),
        lambda s: golddiff.GoldDiff(golddiff.PCA(s), golddiff.PaperSchedule(variant="released")),
        lambda s: golddiff.GoldDiff(golddiff.Kamb(s, 3)),
    ):
        assert close(make(patches)(x, 1.0), make(coloured)(x, 1.0))


def test_supports_given_row_by_row_are_cut_at_the_borders(coloured, patches, queries):
    from golddiff.support import Support

    rows = np.arange(0, patches.n, 3)
    support = Support(rows, np.linspace(0, 1, len(rows)))
    x = queries(patches, 2.0, 2).reshape(2, -1).numpy()
    one = golddiff.PCA(patches).denoise_each(x, 2.0, [support, Support(rows)])
    many = golddiff.PCA(coloured).denoise_each(x, 2.0, [support, Support(rows)])
    np.testing.assert_allclose(many, one, atol=TOLERANCE)


def test_images_and_what_is_made_of_all_of_them(coloured, patches):
    rows = [299, 0, 150, 149, 151]
    for some in (rows, slice(299, 140, -3)):
        assert torch.equal(coloured.images(some), patches.images(some))
    assert torch.equal(coloured.mean, patches.mean)
    np.testing.assert_allclose(
        coloured.factor().eigenvalues, patches.factor().eigenvalues, rtol=1e-8, atol=1e-9
    )
    assert coloured.radius == patches.radius
    assert (coloured.n, coloured.shape, coloured.classes) == (300, (3, 16, 16), [])
    with pytest.raises(golddiff.ClusterError, match="flat is not here"):
        coloured.flat  # noqa: B018


def test_sources_are_the_single_stores(coloured, patches, queries):
    x = queries(patches, 0.5, 1)
    for make in (golddiff.PCA, lambda s: golddiff.GoldDiff(golddiff.Kamb(s, 3))):
        (one,), (many,) = (make(store).attribute(x, 0.5, top=3) for store in (patches, coloured))
        for name in ("sources", "images", "tile_sources", "main"):
            np.testing.assert_array_equal(getattr(one, name), getattr(many, name))
        np.testing.assert_allclose(many.weights, one.weights, atol=1e-4)
        assert torch.allclose(many.reconstruct(), one.reconstruct(), atol=TOLERANCE)
        assert torch.allclose(many.from_top(), one.from_top(), atol=1e-4)
        pixels = [golddiff.pixel_sources(make(s), x, 0.5, 5, 6) for s in (patches, coloured)]
        np.testing.assert_array_equal(pixels[1].sources, pixels[0].sources)
    samples = golddiff.sample(golddiff.GoldDiff(golddiff.Optimal(coloured)), 1, 3, attribution=True)
    assert len(samples.attribution) == 1


def test_a_mixture_is_the_single_stores(coloured, patches, queries):
    x = queries(patches, 1.0, 2)
    one, many = (golddiff.GaussianMixture(s, components=1)(x, 1.0) for s in (patches, coloured))
    assert close(one, many)


def test_what_we_recommend_is_the_single_stores(coloured, patches, queries):
    x = queries(patches, 1.0, 2)
    one, many = (golddiff.network_like(s)(x, 1.0) for s in (patches, coloured))
    # The clusters start from coordinates that differ in their last digits.
    assert float((one - many).square().mean().sqrt()) < 1e-3
    assert golddiff.network_like(coloured).is_ready
