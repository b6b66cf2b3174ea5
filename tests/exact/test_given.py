"""Log weights of all images: class labels, measurements, and the methods that accept them."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given as examples
from hypothesis import strategies as st

import golddiff
from golddiff.kernels.rows import ROWS_PER_TASK
from golddiff.support import RandomSample, Support
from tests.conftest import float64_images
from tests.exact.test_posterior import flat, optimal


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(90, (1, 6, 6)), torch.arange(90) % 3)


def methods(store):
    everything = golddiff.PaperSchedule(k_min=20, k_max=25, m_min=25, m_max=30)
    released = golddiff.PaperSchedule(k_min=20, k_max=25, variant="released")
    return {
        "optimal": golddiff.Optimal(store),
        "pca": golddiff.PCA(store, 0.3),
        "kamb": golddiff.Kamb(store, 3),
        "golden": golddiff.GoldDiff(golddiff.Optimal(store), everything),
        "released": golddiff.GoldDiff(golddiff.PCA(store, 0.3), released),
    }


@pytest.mark.parametrize("name", ["optimal", "pca", "kamb", "golden", "released"])
@examples(st.floats(-1e6, 1e6))
def test_a_constant_log_weight_changes_nothing(store, name, constant):
    d, noise = methods(store)[name], torch.randn(3, 1, 6, 6, generator=torch.Generator())
    x = store.images([1, 2, 3]) + 0.8 * noise
    assert torch.equal(d.given(np.full(store.n, constant))(x, 0.8), d(x, 0.8))


@pytest.mark.parametrize("name", ["optimal", "pca", "kamb", "golden"])
@pytest.mark.parametrize("sigma", [0.1, 1.0, 20.0])
def test_log_weights_0_and_minus_infinity_equal_a_label(store, queries, name, sigma):
    d, x = methods(store)[name], queries(store, sigma)
    weights = torch.where(store.labels == 2, 0.0, -torch.inf)
    assert torch.equal(d.given(weights)(x, sigma), d(x, sigma, 2))
    # A label and log weights together select the intersection.
    assert torch.equal(d.given(weights)(x, sigma, 2), d(x, sigma, 2))


def test_log_weights_of_repeated_calls_add_up(store, queries):
    first, second = np.random.default_rng(0).normal(size=(2, store.n))
    x, d = queries(store, 2.0), golddiff.Optimal(store)
    twice = d.given(first).given(second)
    assert torch.allclose(twice(x, 2.0), d.given(first + second)(x, 2.0), atol=1e-6)
    assert torch.equal(d(x, 2.0), golddiff.Optimal(store)(x, 2.0))  # d is unchanged


@pytest.mark.kernels
def test_log_weights_that_tie_images_far_from_the_query(make_store, smooth_images):
    """Their logits are differences of large numbers, while other images are near the query."""
    sigma = 0.0005
    store = make_store(smooth_images(400, (3, 16, 16)))
    x, images = store.images([3]), float64_images(store)
    squares = np.square(flat(x) - images).sum(axis=1)
    weights = np.where(np.arange(400) < 10, 0, squares / (2 * sigma**2) + 100)
    expected = optimal(store, x, sigma, weights)[0]
    mean = golddiff.Optimal(store).given(weights)(x, sigma)
    assert np.abs(flat(mean) - expected).max() < 1e-5


def test_log_weights_per_query(store, queries):
    weights = np.random.default_rng(1).normal(0, 3, (4, store.n))
    x, d = queries(store, 5.0), golddiff.Optimal(store).given(weights)
    mean, covariance, density = optimal(store, x, 5.0, weights)
    posterior = d.posterior(x, 5.0)
    assert np.abs(flat(posterior.mean) - mean).max() < 1e-5
    assert np.abs(flat(posterior.variance) - np.einsum("bdd->bd", covariance)).max() < 1e-5
    assert np.allclose(posterior.log_density.numpy(), density, rtol=1e-6)


def test_log_weights_per_query_stay_within_the_memory_limit(make_store, smooth_images):
    """Regression: those of a whole batch were copied at once, 2 MB here."""
    store = make_store(smooth_images(4000, (1, 4, 4)))
    weights = np.random.default_rng(0).normal(size=(64, store.n))
    x, unlimited = torch.zeros(64, 1, 4, 4), golddiff.Optimal(store).given(weights)
    limited = golddiff.Optimal(store, memory_limit=1e6).given(weights)
    assert torch.allclose(limited(x, 5.0), unlimited(x, 5.0), atol=1e-6)
    tracemalloc.start()
    limited(x, 5.0)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2.2e6  # 2.8e6 without the limit


@pytest.mark.parametrize("sigma", [0.01, 0.3, 3.0, 60.0])
@pytest.mark.parametrize("spread", [3.0, 300.0, 30_000.0])
def test_images_that_log_weights_rule_out_change_nothing(make_store, smooth_images, sigma, spread):
    images = smooth_images(400, (1, 6, 6))
    store = make_store(images)
    weights = spread * np.random.default_rng(1).normal(0, 1, (3, store.n))
    d = golddiff.Optimal(store).given(weights)
    x = store.images([0, 1, 2]) + sigma * torch.randn(3, 1, 6, 6, generator=torch.manual_seed(0))
    posterior = d.posterior(x, sigma)
    mean, _, density = optimal(store, x, sigma, weights)
    for computed in (posterior.mean, d(x, sigma)):
        assert np.abs(flat(computed) - mean).max() < 1e-5
    assert np.allclose(posterior.log_density.numpy(), density, rtol=1e-6)
    weighed = [len(source.images) for source in d.attribute(x, sigma)]
    if spread == 3:
        assert weighed == [store.n] * 3
    if spread == 30_000 and sigma >= 0.3:
        assert max(weighed) < 20


def test_given_measurement_is_bayes_rule(store, queries):
    generator, x = torch.Generator().manual_seed(0), queries(store, 3.0)
    matrix = torch.randn(4, store.d, generator=generator)

    def operator(images):
        return images.reshape(len(images), -1) @ matrix.T

    y = operator(store.images([7, 8, 9, 10])) + 0.3 * torch.randn(4, 4, generator=generator)
    logs = golddiff.log_likelihood(store, operator, y, 0.3)
    predicted = store.images().reshape(store.n, -1).double() @ matrix.double().T
    normal = torch.distributions.Normal(predicted, 0.3)
    expected = normal.log_prob(y.double()[:, None]).sum(dim=2)
    assert torch.allclose(logs, expected, rtol=1e-5, atol=1e-3)
    mean = golddiff.Optimal(store).given(logs)(x, 3.0)
    assert np.abs(flat(mean) - optimal(store, x, 3.0, expected.numpy())[0]).max() < 1e-5
    measured = golddiff.Optimal(store).given_measurement(operator, y, 0.3)
    assert torch.equal(measured(x, 3.0), mean)
    assert repr(measured).endswith(").given(...)")


def test_a_measurement_without_noise_keeps_exact_fits(store, queries):
    def operator(images):
        return images[:, :, :2]

    y = operator(store.images([4]))
    logs = golddiff.log_likelihood(store, operator, y, 0)
    assert logs[0].isfinite().sum() == 1
    mean = golddiff.Optimal(store).given(logs[0])(queries(store, 30.0), 30.0)
    assert torch.allclose(mean, store.images([4]).expand_as(mean), atol=1e-6)
    with pytest.raises(golddiff.ArgumentError, match="noise: got 0, and no image fits"):
        golddiff.log_likelihood(store, operator, y + 1e-3, 0)


def test_an_exact_measurement_may_be_computed_in_another_batch(store):
    """Regression: a matrix product of one image rounds otherwise than that of 64."""
    matrix = torch.randn(store.d, 20, generator=torch.Generator().manual_seed(0))
    module = torch.nn.Linear(store.d, 20)
    with torch.no_grad():
        module.weight.copy_(matrix.T)
        y = module(store.images([4]).flatten(1))
    logs = golddiff.log_likelihood(store, lambda images: module(images.flatten(1)), y, 0)
    assert logs[0].isfinite().nonzero().tolist() == [[4]]
    assert not logs.requires_grad  # a graph of all images would take gigabytes


def test_the_square_of_a_tiny_noise_may_underflow(store):
    """Regression: the weights were NaN."""
    logs = golddiff.log_likelihood(store, lambda images: images, store.images([4]), 1e-170)
    assert logs[0].isfinite().nonzero().tolist() == [[4]]


@pytest.mark.parametrize("variant", ["text", "released"])
@pytest.mark.parametrize("sigma", [1e-4, 0.3, 40.0])
def test_golden_subsets_rank_by_distance_and_log_weight(make_store, smooth_images, variant, sigma):
    store = make_store(smooth_images(600, (1, 8, 8), seed=3))
    weights = np.full(store.n, -1e5)
    weights[123:130] = 0
    x = store.images([400]) + sigma * torch.randn(
        1, *store.shape, generator=torch.Generator().manual_seed(1)
    )
    full = golddiff.Optimal(store).given(weights)
    schedule = golddiff.PaperSchedule(k_min=20, k_max=30, variant=variant)
    golden = golddiff.GoldDiff(golddiff.Optimal(store), schedule).given(weights)
    assert torch.allclose(golden(x, sigma), full(x, sigma), atol=1e-5)


@pytest.mark.parametrize("sigma", [0.3, 1.5, 6.0, 30.0])
def test_adaptive_errors_with_log_weights_are_within_tol(make_store, smooth_images, queries, sigma):
    store = make_store(smooth_images(2500, (1, 8, 8), seed=5))
    weights = np.random.default_rng(2).normal(0, 4, store.n)
    weights[::7] = -np.inf
    x = queries(store, sigma, b=6)
    for base in (golddiff.Optimal(store), golddiff.PCA(store, 0.2)):
        full = base.given(weights)(x, sigma)
        adaptive = golddiff.GoldDiff(base, golddiff.AdaptiveSchedule(0.02)).given(weights)
        errors = (adaptive(x, sigma) - full).square().mean(dim=(1, 2, 3)).sqrt()
        assert errors.median() < 0.02
        assert errors.max() < 0.06
        supports = adaptive.supports(x, sigma)
        assert not any(np.isin(s.rows, np.flatnonzero(weights == -np.inf)).any() for s in supports)


@examples(st.integers(1, 59), st.integers(0, 1000))
def test_a_weighted_sample_has_distinct_rows_and_no_lower_weights(count, seed):
    weights = np.random.default_rng(seed).normal(0, 3, 60)
    support = Support(np.arange(100, 160), weights)
    sampled = support.sampled(RandomSample(count, (seed,)))
    assert len(sampled) == count
    assert np.array_equal(sampled.rows, np.unique(sampled.rows))
    assert (sampled.log_weights >= weights[sampled.rows - 100]).all()


def test_sums_over_a_weighted_sample_are_unbiased():
    weights = np.random.default_rng(0).normal(0, 2, 60)
    values = np.random.default_rng(1).normal(size=60)
    support, totals = Support(np.arange(60), weights), []
    for seed in range(4000):
        sampled = support.sampled(RandomSample(15, (seed,)))
        totals.append(np.exp(sampled.log_weights) @ values[sampled.rows])
    error = np.std(totals) / np.sqrt(len(totals))
    assert abs(np.mean(totals) - np.exp(weights) @ values) < 4 * error


def test_guidance_extrapolates_from_all_images_to_the_class(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 2.0)
    assert torch.allclose(golddiff.guided(d, 1, 0)(x, 2.0), d(x, 2.0))
    labels = torch.tensor([1])
    guided = golddiff.guided(d, labels, 2)
    before, labels[0] = guided(x, 2.0), 0  # the caller's tensor is the caller's
    assert torch.equal(guided(x, 2.0), before)
    assert torch.allclose(golddiff.guided(d, 1, 1)(x, 2.0), d(x, 2.0, 1), atol=1e-6)
    extrapolated = golddiff.guided(d, [0, 1, 2, 0], 2.5)
    expected = d(x, 2.0) + 2.5 * (d(x, 2.0, [0, 1, 2, 0]) - d(x, 2.0))
    assert torch.allclose(extrapolated(x, 2.0), expected, atol=1e-6)
    assert torch.equal(golddiff.guided(d, torch.tensor(1), 2.0)(x, 2.0),
                       golddiff.guided(d, np.int64(1), 2.0)(x, 2.0))  # fmt: skip
    assert len(golddiff.sample(golddiff.guided(d, 1, 2.0), 2, steps=3)) == 2


BAD_WEIGHTS = [
    (np.zeros(89), "log_weights: got shape (89,), expected (90,) or (B, 90)"),
    (np.zeros((2, 3, 90)), "log_weights: got shape (2, 3, 90)"),
    (np.full(90, -np.inf), "log_weights: row 0 is all -inf"),
    (np.full(90, np.nan), "log_weights: got NaN or +inf"),
    (np.full(90, np.inf), "log_weights: got NaN or +inf"),
    ("all", "log_weights: got 'all', expected natural logs"),
    (np.zeros(90) + 1j, "log_weights: got torch.complex128"),
    (np.arange(90) > 9, "log_weights: got torch.bool, expected natural logs"),
]


@pytest.mark.parametrize(("weights", "message"), BAD_WEIGHTS)
def test_bad_log_weights_are_refused(store, weights, message):
    with pytest.raises(golddiff.ArgumentError) as caught:
        golddiff.Optimal(store).given(weights)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_list_of_log_weights_keeps_its_digits(store):
    """Regression: they were rounded to float32, as a list only."""
    weights = 1000 + np.arange(90) / 3e4
    from_list, from_array = (golddiff.Optimal(store).given(w) for w in (weights.tolist(), weights))
    assert np.array_equal(from_list.priors[0].values, from_array.priors[0].values)


def test_bad_arguments_are_refused(store, queries):
    d, x = golddiff.Optimal(store), queries(store, 1.0)
    none_of_1 = torch.where(store.labels == 1, -torch.inf, 0.0)
    cases = [
        (lambda: d.given(np.zeros((3, 90)))(x, 1.0), "x: got 4 images, but log weights were given"),
        (lambda: d.given(np.zeros((3, 90))).given(np.zeros((2, 90))), "log_weights: got 2 rows"),
        (lambda: d.given(none_of_1)(x, 1.0, 1), "labels: got 1, but the log weights exclude"),
        (
            lambda: golddiff.Wiener(store).given(np.zeros(90)),
            "given: not supported by Wiener",
        ),
        (lambda: golddiff.GoldDiff(d.given(np.zeros(90))), "base: has log weights"),
        (
            lambda: golddiff.PCA(store).log_density(x, 1.0),
            "log density: PCA has no joint posterior",
        ),
        (lambda: golddiff.Kamb(store, 3).posterior(x, 1.0).draw(2), "draws: Kamb has no joint"),
        (
            lambda: golddiff.PatchMixture(store).posterior(x, 1.0),
            "posterior: not supported by PatchMixture",
        ),
        (
            lambda: golddiff.PCA(store, weighting="wss").posterior(x, 1.0),
            "posterior: not supported by PCA; expected Optimal, Kamb, PCA with weighting 'ss'",
        ),
        (lambda: golddiff.PSPCSquare(store).posterior(x, 1.0), "posterior: not supported by PSPC"),
        (
            lambda: golddiff.NearestImage(store).given_measurement(abs, x, 1.0),
            "given_measurement: not supported by NearestImage; expected a method that weighs "
            "training images, such as Optimal, PCA, Kamb or GoldDiff, or Wiener or GaussianMixture",
        ),
        (lambda: d.posterior(x, 1.0).draw(0), "n: got 0, expected an integer of 1 or more"),
        (lambda: d.posterior(x, 1.0).draw(1, seed=-1), "seed: got -1"),
        (lambda: d.posterior(x, 1.0).directions(37), "k: got 37, expected at most 36"),
        (lambda: golddiff.guided(d, 1, np.inf), "scale: got inf"),
        (lambda: golddiff.guided(d, 9, 1.0), "labels: got 9"),
        (lambda: golddiff.guided(d, None, 1.0), "labels: got None"),
        (lambda: golddiff.guided(d, 1.5, 1.0), "labels: got torch.float64"),
        (lambda: golddiff.log_likelihood(store, abs, x, -1), "noise: got -1"),
        (lambda: golddiff.log_likelihood(store, 3, x, 1.0), "operator: got int"),
        (lambda: golddiff.log_likelihood(store, abs, x[:, :, 1:], 1.0), "operator: got output (64"),
        (lambda: golddiff.log_likelihood(store, abs, [1.0], 1.0), "y: got list, expected a tensor"),
        (lambda: golddiff.log_likelihood(store, abs, x[:0], 1.0), "y: got shape"),
        (lambda: golddiff.log_likelihood(store, abs, 1j * x, 1.0), "y: got torch.complex64"),
        (lambda: golddiff.log_likelihood(store, abs, x.byte(), 1.0), "y: got torch.uint8"),
        (
            lambda: golddiff.log_likelihood(store, torch.fft.fft, x, 1.0),
            "operator: got torch",
        ),
        (lambda: golddiff.Wiener(store).given_measurement(abs, 1j * x, 1.0), "y: got torch"),
    ]
    for call, message in cases:
        with pytest.raises(golddiff.ArgumentError) as caught:
            call()
        assert str(caught.value).startswith(message), str(caught.value)
        assert "\n" not in str(caught.value)


def test_proved_bounds_and_log_weights_are_refused_together(store, queries):
    d = golddiff.GoldDiff(golddiff.Optimal(store), golddiff.AdaptiveSchedule(guarantee=True))
    with pytest.raises(golddiff.ArgumentError, match="given: no bound is proved"):
        d.given(np.zeros(store.n))
    plain = golddiff.GoldDiff(golddiff.Optimal(store)).given(np.arange(90.0))
    with pytest.raises(golddiff.ArgumentError, match="certified: the bound is not proved"):
        plain.certified(queries(store, 1.0), 1.0)


def test_attribution_uses_the_log_weights(store, queries):
    weights = np.full(store.n, -np.inf)
    weights[[11, 12]] = 0
    (attribution,) = golddiff.Optimal(store).given(weights).attribute(queries(store, 9.0, b=1), 9.0)
    assert attribution.images.tolist() == [11, 12]
    assert attribution.image_weights.sum() == pytest.approx(1)


@pytest.mark.parametrize("cache_share", [0, 1 / 16])
@pytest.mark.parametrize(("sigma", "spread"), [(0.002, 1000), (0.3, 1000), (2.0, 1000), (2.0, 2)])
def test_the_sigma_gradient_is_accurate_with_log_weights_of_any_size(
    make_store, smooth_images, queries, sigma, spread, cache_share, monkeypatch
):
    """Its terms are rounded to float32; log weights of -1000 must not amplify the rounding."""
    monkeypatch.setattr("golddiff.store.exact.CACHE_SHARE", cache_share)
    store = make_store(smooth_images(2 * ROWS_PER_TASK, (1, 4, 4)))  # more than one part
    weights = np.random.default_rng(3).normal(0, spread, store.n)
    images, x = float64_images(store), queries(store, sigma)
    level = torch.full((4,), sigma, dtype=torch.float64, requires_grad=True)
    u = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    (golddiff.Optimal(store).given(weights)(x, level) * u).sum().backward()
    for query, along, slope in zip(flat(x), flat(u), level.grad.tolist(), strict=True):
        squares = ((query - images) ** 2).sum(axis=1)
        logs = weights - squares / (2 * sigma**2)
        share = np.exp(logs - np.logaddexp.reduce(logs))
        deviations = (images - share @ images) @ along
        expected = (share * deviations * (squares - share @ squares)).sum() / sigma**3
        assert slope == pytest.approx(expected, rel=1e-3, abs=1e-3 / sigma)


@pytest.mark.parametrize("constant", [-1e7, -1e45])
def test_a_constant_log_weight_per_batch_does_not_change_wss(store, queries, constant):
    """In "wss" all batches have equal weight; float32 cannot resolve logits next to -1e7."""
    x, d = queries(store, 2.0), golddiff.PCA(store, 0.1, weighting="wss", batch_size=40)
    weights = constant * (np.arange(store.n) // 40)
    torch.testing.assert_close(d.given(weights)(x, 2.0), d(x, 2.0), atol=1e-6, rtol=0)


@pytest.mark.parametrize("share", ["pixel", "seamless"])
def test_a_shared_softmax_accepts_huge_log_weights(make_store, smooth_images, queries, share):
    store = make_store(smooth_images(1100, (1, 5, 5)))
    weights = np.full(store.n, -1e45)
    weights[[3, 1000]] = 0, -1  # all parts between them have weight 0
    only_two = np.where(weights < -1, -np.inf, weights)
    x, d = queries(store, 2.0), golddiff.PCA(store, 0.1, share=share)
    assert torch.allclose(d.given(weights)(x, 2.0), d.given(only_two)(x, 2.0), atol=1e-6)


def test_conditions_per_image_do_not_depend_on_the_batch_size(store):
    labels, y = [0, 1, 2], store.images([1, 2, 3])
    weights = torch.stack([torch.where(store.labels == label, 0.0, -torch.inf) for label in labels])
    optimal = golddiff.Optimal(store)
    for d in (
        optimal.given(weights),
        golddiff.guided(optimal, labels, 1.0),
        golddiff.guided(optimal.given(torch.arange(270.0).reshape(3, 90) % 7), 1, 2.0),
        golddiff.Wiener(store).given_measurement(lambda x: x[..., :3], y[..., :3], 0.5),
        golddiff.Wiener(store)
        .given_measurement(lambda x: x[..., :3], y[..., :3], 0.5)
        .given_measurement(lambda x: x[..., 3:], y[:1, ..., 3:], 0.5),
    ):
        in_two, in_one = (golddiff.sample(d, 3, 4, batch_size=b).images for b in (2, 3))
        assert torch.equal(in_two, in_one)
        with pytest.raises(golddiff.ArgumentError, match="n: got 6, expected 3"):
            golddiff.sample(d, 6)
