"""A sharded store gives the single store's answer to every call."""

import numpy as np
import pytest
import torch

import golddiff
from golddiff.attribution import attribute
from golddiff.posterior import Posterior
from golddiff.support import Support, TiledSupport, concatenated
from tests.recorded import Recorded

# Values of at most 1 are averaged in float32 sums of at most 512 images, with a rounding of
# 2^-24 = 6e-8. In another order, sums differ by about sqrt(512) * 6e-8 = 1.4e-6.
TOLERANCE = 1e-5


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
def test_a_full_scan_equals_the_single_store(split_digits, digits, method):
    make = METHODS[method]
    whole = Recorded(make(digits))
    golddiff.sample(whole, 3)
    assert whole.furthest(make(split_digits)) <= TOLERANCE
    assert split_digits.share == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("method", ["optimal", "pca", "pca wss", "kamb", "scfdm", "pspc"])
def test_golden_means_equal_the_single_store(split_digits, digits, method, schedule):
    whole, split = (
        golddiff.GoldDiff(METHODS[method](store), SCHEDULES[schedule]())
        for store in (digits, split_digits)
    )
    run = Recorded(whole)
    golddiff.sample(run, 3)
    assert run.furthest(split) <= TOLERANCE


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_golden_rows_equal_the_single_store(split_digits, digits, schedule, queries):
    # Pooled to 2 x 2, many digits have the same distance: the selection has ties.
    whole, split = (
        golddiff.GoldDiff(golddiff.Optimal(store), SCHEDULES[schedule]())
        for store in (digits, split_digits)
    )
    for sigma in (0.1, 2.0, 30.0):
        x = queries(digits, sigma, 3)
        for label in (None, 4):
            supports = (d.supports(x, sigma, label) for d in (whole, split))
            for expected, found in zip(*supports, strict=True):
                np.testing.assert_array_equal(expected.rows, found.rows)
                assert found.log_weights is None
                assert len(found) == len(expected)


@pytest.mark.parametrize("method", ["optimal", "pca", "kamb", "pspc"])
def test_adaptive_supports_equal_the_single_store(split_digits, digits, queries, method):
    """Covers drawn, nearest and all images; also compares rows and estimated errors."""
    whole, split = (
        golddiff.GoldDiff(METHODS[method](store), golddiff.AdaptiveSchedule(0.1))
        for store in (digits, split_digits)
    )
    not_full = 0
    for sigma in (30.0, 3.0, 0.3):
        x = queries(digits, sigma, 2)
        (expected, errors), (found, found_errors) = (d.estimated(x, sigma) for d in (whole, split))
        assert (expected - found).abs().max() <= TOLERANCE
        assert torch.allclose(errors, found_errors, atol=1e-5)
        not_full += int((errors > 0).sum())
    assert (not_full > 0) == (method != "optimal")  # Optimal weighs all images
    for a, b in zip(whole.supports(x, 3.0), split.supports(x, 3.0), strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)


def test_index_and_guarantee_are_refused_over_shards(split_digits):
    for name in ("index", "guarantee"):
        schedule = golddiff.AdaptiveSchedule(0.05, **{name: True})
        with pytest.raises(golddiff.ArgumentError, match=f"{name}: got True over a store in shard"):
            golddiff.GoldDiff(golddiff.Optimal(split_digits), schedule)


def test_classes_equal_the_single_store(split_digits, digits):
    assert split_digits.class_counts == digits.class_counts
    for label in (0, 7):
        for make in (golddiff.PCA, golddiff.Wiener):
            whole = Recorded(make(digits))
            golddiff.sample(whole, 2, 4, labels=label)
            assert whole.furthest(make(split_digits)) <= TOLERANCE
    np.testing.assert_array_equal(split_digits.rows_of(7), digits.rows_of(7))
    with pytest.raises(golddiff.ArgumentError, match="a class with no images"):
        golddiff.Optimal(split_digits)(torch.zeros(1, 1, 8, 8), 1.0, 11)


def test_colour_images_without_labels_in_shards_above_the_memory_limit(
    split_patches, patches, queries
):
    x = queries(patches, 1.0, 2)
    for make in (
        lambda s: golddiff.PCA(s),
        lambda s: golddiff.GoldDiff(golddiff.PCA(s), golddiff.PaperSchedule(variant="released")),
        lambda s: golddiff.GoldDiff(golddiff.Kamb(s, 3)),
    ):
        assert close(make(patches)(x, 1.0), make(split_patches)(x, 1.0))


def test_pca_in_shards_is_exact_between_images_that_float32_cannot_tell_apart(
    split_patches, patches
):
    x = (patches.images(range(4)) + patches.images(range(200, 204))) / 2
    pca = golddiff.PCA(split_patches, 0.3)
    exact = golddiff.PCA(patches, 0.3).posterior(x, 0.001).mean
    assert (pca(x, 0.001) - exact).abs().max() < 2e-4


def test_listed_rows_are_split_at_the_shard_borders(split_patches, patches, queries):
    rows, weights = np.arange(0, patches.n, 3), np.linspace(0, 1, 100)
    in_one_shard, unsorted = Support(np.arange(20)), Support(rows * 7 % patches.n, weights)
    supports = [Support(rows, weights), Support(rows), in_one_shard, unsorted]
    x = queries(patches, 2.0, 4).reshape(4, -1).numpy()
    whole = golddiff.PCA(patches).denoise_over(x, 2.0, supports)
    split = golddiff.PCA(split_patches).denoise_over(x, 2.0, supports)
    np.testing.assert_allclose(split, whole, atol=TOLERANCE)
    sources = [attribute(golddiff.PCA(s), unsorted, x[3], 2.0) for s in (patches, split_patches)]
    np.testing.assert_allclose(*(found.total for found in sources), atol=TOLERANCE)
    np.testing.assert_array_equal(*(found.main for found in sources))


def test_images_factor_and_radius_equal_the_single_store(split_patches, patches):
    rows = [299, 0, 150, 149, 151]
    for selection in (rows, slice(299, 140, -3)):
        assert torch.equal(split_patches.images(selection), patches.images(selection))
    np.testing.assert_allclose(split_patches.factor().mean, patches.factor().mean, atol=1e-12)
    np.testing.assert_allclose(
        split_patches.factor().eigenvalues, patches.factor().eigenvalues, rtol=1e-8, atol=1e-9
    )
    assert (split_patches.n, split_patches.radius) == (300, patches.radius)
    assert split_patches.factor().images == 300
    assert (split_patches.shape, split_patches.classes) == ((3, 16, 16), [])
    with pytest.raises(golddiff.ClusterError, match="flat is not here"):
        split_patches.flat  # noqa: B018


def test_attributions_equal_the_single_store(split_patches, patches, queries):
    x, stores = queries(patches, 0.5, 1), (patches, split_patches)
    for make in (golddiff.PCA, lambda s: golddiff.GoldDiff(golddiff.Kamb(s, 3))):
        (whole,), (split,) = (make(store).attribute(x, 0.5, top=3) for store in stores)
        for name in ("sources", "images", "main"):
            np.testing.assert_array_equal(getattr(whole, name), getattr(split, name))
        np.testing.assert_allclose(split.weights, whole.weights, atol=1e-4)
        assert torch.allclose(split.reconstruct(), whole.reconstruct(), atol=TOLERANCE)
        assert torch.allclose(split.from_top(), whole.from_top(), atol=1e-4)
        pixels = [golddiff.pixel_sources(make(s), x, 0.5, 5, 6) for s in stores]
        np.testing.assert_array_equal(pixels[1].sources, pixels[0].sources)
    golden = golddiff.GoldDiff(golddiff.Optimal(split_patches))
    samples = golddiff.sample(golden, 1, 3, attribution=True)
    assert len(samples.attribution) == 1


def test_a_gaussian_mixture_equals_the_single_store(split_patches, patches, queries):
    x = queries(patches, 1.0, 2)
    stores = patches, split_patches
    whole, split = (golddiff.GaussianMixture(s, components=1)(x, 1.0) for s in stores)
    assert close(whole, split)


def test_network_like_equals_the_single_store(split_patches, patches, queries):
    x = queries(patches, 1.0, 2)
    whole, split = (golddiff.network_like(s)(x, 1.0) for s in (patches, split_patches))
    # The initial cluster coordinates differ by rounding.
    assert float((whole - split).square().mean().sqrt()) < 1e-3
    assert golddiff.network_like(split_patches).is_ready


class Uniform(golddiff.Optimal):
    """A user-defined estimator that weighs all images equally."""

    def weigh(self, x, sigma, part):
        values = self.images.values(part.rows)
        count = np.full((len(x), 1), float(len(values)))
        return Posterior(np.zeros((len(x), 1)), count, np.tile(values.sum(0), (len(x), 1)))


def test_a_user_defined_estimator_runs_over_shards(split_digits, digits, queries):
    x = queries(digits, 1.0, 2)
    assert close(Uniform(split_digits)(x, 1.0), digits.images().mean(0).expand(2, -1, -1, -1))
    whole, split = (golddiff.GoldDiff(Uniform(s))(x, 1.0) for s in (digits, split_digits))
    assert close(whole, split)


def test_tiled_supports_equal_the_single_store(split_patches, patches, queries):
    x = queries(patches, 1.0, 2).reshape(2, -1).numpy()
    generator = np.random.default_rng(0)

    def tiles():
        rows = [np.sort(generator.choice(300, 40, replace=False)) for _ in range(15)]
        listed = [Support(r, generator.normal(size=len(r))) for r in rows]
        return TiledSupport(4, [*listed, Support(np.arange(20))])  # the last is in one shard

    supports = [tiles(), tiles()]
    stores = patches, split_patches
    whole, split = (golddiff.PCA(s).denoise_over(x, 1.0, supports) for s in stores)
    np.testing.assert_allclose(split, whole, atol=TOLERANCE)


class MeanDifference:
    """A metric: difference of mean values, over all values or over 16 consecutive parts."""

    def __init__(self, side=None):
        self.side = side

    def distances(self, images, x, rows):
        count = 1 if self.side is None else 16
        values = images.values(rows).reshape(len(rows), count, -1).mean(2)
        return np.abs(x.reshape(len(x), count, -1).mean(2)[:, :, None] - values.T[None])


class Count:
    """A question: the number of candidate images."""

    def answer_shard(self, images, x, within):
        return sum(map(len, within))

    def merge(self, answers):
        return sum(answers)


class ThirdRows:
    """A question that depends on rows of the whole store: every third one, with weights."""

    def answer_shard(self, images, x, within, total):
        rows = [support.rows + images.first_row for support in within]
        return [Support(r[r % 3 == 0], r[r % 3 == 0] / total) for r in rows]

    def merge(self, answers, total):
        return [concatenated(parts) for parts in zip(*answers, strict=True)]


@pytest.mark.parametrize("side", [None, 4])
def test_user_defined_metrics_and_questions(split_patches, patches, queries, side):
    x = queries(patches, 1.0, 2).reshape(2, -1).numpy()
    within = [patches.everything(None), Support(np.arange(0, 300, 2), np.linspace(0, 1, 150))]
    metric = MeanDifference(side)
    whole, split = (s.nearest(x, 20, metric, within) for s in (patches, split_patches))
    for a, b in zip(whole, split, strict=True):
        pairs = [(a, b)] if side is None else zip(a.tiles, b.tiles, strict=True)
        for expected, found in pairs:
            np.testing.assert_array_equal(expected.rows, found.rows)
            np.testing.assert_array_equal(expected.log_importance(), found.log_importance())
    assert patches.answer(Count(), x, within) == split_patches.answer(Count(), x, within) == 450
    whole, split = (s.answer(ThirdRows(), x, within, 450) for s in (patches, split_patches))
    for a, b in zip(whole, split, strict=True):
        np.testing.assert_array_equal(a.rows, b.rows)
        np.testing.assert_array_equal(a.log_weights, b.log_weights)


# Posteriors, log weights and gradients

SIGMA = 1.5


@pytest.fixture(scope="module")
def x(digits):
    noise = torch.randn(3, *digits.shape, generator=torch.Generator().manual_seed(0))
    return digits.images([5, 700, 1500]) + SIGMA * noise


@pytest.fixture(scope="module")
def weights(digits):
    log_weights = np.random.default_rng(0).normal(0, 2, digits.n)
    log_weights[::5] = -np.inf
    return log_weights


WEIGHTED = {
    "optimal": golddiff.Optimal,
    "pca": golddiff.PCA,
    "kamb": lambda store: golddiff.Kamb(store, 3, boundary="none"),
    "golden": lambda store: golddiff.GoldDiff(golddiff.PCA(store)),
    "released": lambda store: golddiff.GoldDiff(
        golddiff.Optimal(store), golddiff.PaperSchedule(variant="released")
    ),
    "adaptive": lambda store: golddiff.GoldDiff(
        golddiff.Optimal(store), golddiff.AdaptiveSchedule(0)
    ),
}


@pytest.mark.parametrize("method", WEIGHTED)
def test_means_variances_and_gradients_with_log_weights(split_digits, digits, x, weights, method):
    whole, split = (WEIGHTED[method](store).given(weights) for store in (digits, split_digits))
    assert torch.allclose(whole(x, SIGMA), split(x, SIGMA), atol=1e-5)
    expected, found = whole.posterior(x, SIGMA), split.posterior(x, SIGMA)
    assert torch.allclose(expected.variance, found.variance, atol=1e-6)
    gradients = []
    for denoiser in (whole, split):
        query = x.clone().requires_grad_()
        denoiser(query, SIGMA).square().sum().backward()
        gradients.append(query.grad)
    assert torch.allclose(*gradients, atol=1e-5)


def test_log_weights_of_each_query(split_digits, digits, x):
    weights = np.random.default_rng(0).normal(0, 2, (len(x), digits.n))
    whole, split = (golddiff.Optimal(store).given(weights) for store in (digits, split_digits))
    assert torch.allclose(whole(x, SIGMA), split(x, SIGMA), atol=1e-6)


def test_draws_directions_and_log_density(split_digits, digits, x, weights):
    for log_weights in (np.zeros(digits.n), weights):
        expected, found = (
            golddiff.Optimal(store).given(log_weights).posterior(x, SIGMA)
            for store in (digits, split_digits)
        )
        assert torch.equal(expected.draw(20, seed=3), found.draw(20, seed=3))
        assert torch.allclose(expected.log_density, found.log_density, rtol=1e-9)
        for a, b in zip(expected.directions(2), found.directions(2), strict=True):
            assert torch.allclose(a, b, atol=1e-4)


def test_the_log_likelihood_of_a_measurement(split_digits, digits):
    y = digits.images([3, 4])[:, :, :4]
    stores = digits, split_digits
    assert torch.equal(*(golddiff.log_likelihood(s, lambda v: v[:, :, :4], y, 0.2) for s in stores))
