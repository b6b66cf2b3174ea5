"""A store in shards gives a single store's answer to every call."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.cluster import ShardedStore
from golddiff.posterior import Posterior
from golddiff.support import Support, TiledSupport, concatenated
from tests.recorded import Recorded

# Values of at most 1 are averaged, in float32 sums (2^-24 = 6e-8 a rounding) of at most 512 images;
# in any other order these differ by some sqrt(512) * 6e-8 = 1.4e-6.
TOLERANCE = 1e-5
SHARDS = (2, 3)


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
    "pspc": lambda s: golddiff.PSPCSquare(s, 3),
    "wiener": lambda s: golddiff.Wiener(s),
    "scfdm": lambda s: golddiff.SCFDM(s, 0.3, copies=3),
    "nearest": lambda s: golddiff.NearestImage(s),
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
    one = Recorded(make(digits))
    golddiff.sample(one, 3)
    assert one.furthest(make(sharded)) <= TOLERANCE
    assert sharded.share == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", ["optimal", "pca", "pca wss", "kamb", "scfdm", "pspc"])
def test_a_golden_support_is_the_single_stores(sharded, digits, method, schedule):
    one, many = (
        golddiff.GoldDiff(METHODS[method](store), SCHEDULES[schedule]())
        for store in (digits, sharded)
    )
    run = Recorded(one)
    golddiff.sample(run, 3)
    assert run.furthest(many) <= TOLERANCE


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


@pytest.mark.parametrize("method", ["optimal", "pca", "kamb", "pspc"])
def test_an_adaptive_support_is_the_single_stores(sharded, digits, queries, method):
    """Drawn, the nearest and all images: row for row, and the estimate with them."""
    one, many = (
        golddiff.GoldDiff(METHODS[method](store), golddiff.AdaptiveSchedule(0.1))
        for store in (digits, sharded)
    )
    some = 0
    for sigma in (30.0, 3.0, 0.3):
        x = queries(digits, sigma, 2)
        (mine, told), (theirs, said) = one.estimated(x, sigma), many.estimated(x, sigma)
        assert (mine - theirs).abs().max() <= TOLERANCE
        assert torch.allclose(told, said, atol=1e-5)
        some += int((told > 0).sum())
    assert (some > 0) == (method != "optimal")  # which weighs all
    for a, b in zip(one.supports(x, 3.0), many.supports(x, 3.0), strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)


def test_what_takes_a_single_store_says_so(two):
    for name in ("index", "guarantee"):
        schedule = golddiff.AdaptiveSchedule(0.05, **{name: True})
        with pytest.raises(golddiff.ArgumentError, match=f"{name}: got True over a store in shard"):
            golddiff.GoldDiff(golddiff.Optimal(two), schedule)


def test_classes_are_the_single_stores(sharded, digits):
    assert sharded.class_counts == digits.class_counts
    for label in (0, 7):
        for make in (golddiff.PCA, golddiff.Wiener):
            one = Recorded(make(digits))
            golddiff.sample(one, 2, 4, labels=label)
            assert one.furthest(make(sharded)) <= TOLERANCE
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
    rows = np.arange(0, patches.n, 3)
    support = Support(rows, np.linspace(0, 1, len(rows)))
    x = queries(patches, 2.0, 2).reshape(2, -1).numpy()
    one = golddiff.PCA(patches).denoise_over(x, 2.0, [support, Support(rows)])
    many = golddiff.PCA(coloured).denoise_over(x, 2.0, [support, Support(rows)])
    np.testing.assert_allclose(many, one, atol=TOLERANCE)


def test_images_and_what_is_made_of_all_of_them(coloured, patches):
    rows = [299, 0, 150, 149, 151]
    for some in (rows, slice(299, 140, -3)):
        assert torch.equal(coloured.images(some), patches.images(some))
    np.testing.assert_allclose(coloured.factor().mean, patches.factor().mean, atol=1e-12)
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


class Flat(golddiff.Optimal):
    """An estimator of the user's own: all images weigh the same."""

    def weigh(self, x, sigma, part):
        values = self.images.values(part.rows)
        count = np.full((len(x), 1), float(len(values)))
        return Posterior(np.zeros((len(x), 1)), count, np.tile(values.sum(0), (len(x), 1)))


def test_an_estimator_of_ones_own_runs_over_shards(two, digits, queries):
    x = queries(digits, 1.0, 2)
    assert close(Flat(two)(x, 1.0), digits.images().mean(0).expand(2, -1, -1, -1))
    one, many = (golddiff.GoldDiff(Flat(s))(x, 1.0) for s in (digits, two))
    assert close(one, many)


def test_tiles_over_shards_are_the_single_stores(coloured, patches, queries):
    x = queries(patches, 1.0, 2).reshape(2, -1).numpy()
    generator = np.random.default_rng(0)

    def tiles():
        rows = [np.sort(generator.choice(300, 40, replace=False)) for _ in range(15)]
        listed = [Support(r, generator.normal(size=len(r))) for r in rows]
        return TiledSupport(4, [*listed, Support(np.arange(20))])  # the last has one shard's alone

    supports = [tiles(), tiles()]
    one, many = (golddiff.PCA(s).denoise_over(x, 1.0, supports) for s in (patches, coloured))
    np.testing.assert_allclose(many, one, atol=TOLERANCE)


class ByMean:
    """Distance of images' mean values; of each half of the image where there are tiles."""

    def __init__(self, side=None):
        self.side = side

    def distances(self, images, x, rows):
        count = 1 if self.side is None else 16
        values = images.values(rows).reshape(len(rows), count, -1).mean(2)
        return np.abs(x.reshape(len(x), count, -1).mean(2)[:, :, None] - values.T[None])


class Count:
    """A question: how many images there are."""

    def answer_shard(self, images, x, within):
        return sum(map(len, within))

    def merge(self, answers):
        return sum(answers)


class ByRow:
    """A question that hangs on the row in the whole store: every third image, weights of it."""

    def answer_shard(self, images, x, within, total):
        rows = [support.rows + images.first_row for support in within]
        return [Support(some[some % 3 == 0], some[some % 3 == 0] / total) for some in rows]

    def merge(self, answers, total):
        return [concatenated(parts) for parts in zip(*answers, strict=True)]


@pytest.mark.parametrize("side", [None, 4])
def test_any_metric_and_question_gives_the_single_stores_images(coloured, patches, queries, side):
    x = queries(patches, 1.0, 2).reshape(2, -1).numpy()
    within = [patches.everything(None), Support(np.arange(0, 300, 2), np.linspace(0, 1, 150))]
    metric = ByMean(side)
    one, many = (s.nearest(x, 20, metric, within) for s in (patches, coloured))
    for mine, theirs in zip(one, many, strict=True):
        tiles = [(mine, theirs)] if side is None else zip(mine.tiles, theirs.tiles, strict=True)
        for a, b in tiles:
            np.testing.assert_array_equal(a.rows, b.rows)
            np.testing.assert_array_equal(a.log_importance(), b.log_importance())
    assert patches.answer(Count(), x, within) == coloured.answer(Count(), x, within) == 450
    one, many = (s.answer(ByRow(), x, within, 450) for s in (patches, coloured))
    for a, b in zip(one, many, strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)
        np.testing.assert_array_equal(a.log_weights, b.log_weights)
