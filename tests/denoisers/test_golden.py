"""GoldDiff: an estimator over the images that a schedule selects."""

import numpy as np
import pytest
import torch

from golddiff import PCA, SCFDM, GoldDiff, Kamb, Optimal, PaperSchedule, PSPCSquare, Wiener
from golddiff.noise import ddim_sigmas
from golddiff.store.proxy import side_16_shape
from golddiff.support import Support
from golddiff.system.errors import ArgumentError
from reliability import reference
from tests.conftest import float64_images

BASES = {
    "optimal": Optimal,
    "pca": PCA,
    "pca wss": lambda store: PCA(store, weighting="wss", batch_size=16),
    "kamb": lambda store: Kamb(store, patch_sizes=3),
    "pca 2x2": lambda store: PCA(store, share="2x2"),
    "scfdm": lambda store: SCFDM(store, 0.3),
    "pspc": lambda store: PSPCSquare(store, 3),
}


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(200, (3, 8, 8)), torch.arange(200) % 4)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("variant", ["text", "released"])
@pytest.mark.parametrize("labels", [None, 2])
def test_golden_subset_of_everything_is_the_full_scan(store, queries, base, variant, labels):
    full = BASES[base](store)
    golden = GoldDiff(full, PaperSchedule(1.0, 1.0, 1.0, 1.0, variant=variant))
    for sigma in (0.05, 1.0, 30.0):
        x = queries(store, sigma)
        assert (golden(x, sigma, labels) - full(x, sigma, labels)).abs().max() < 1e-5


@pytest.mark.parametrize("sigma", [0.05, 1.0, 30.0])
def test_variant_text_selects_the_nearest_of_the_m_nearest_by_proxy(store, queries, sigma):
    schedule = PaperSchedule()
    m, k = schedule.budgets(sigma, 200)
    images = float64_images(store).reshape(200, 3, 8, 8)
    proxies = images.reshape(200, 3, 2, 4, 2, 4).mean((3, 5)).reshape(200, -1)
    x = queries(store, sigma)
    for query, support in zip(x, GoldDiff(Optimal(store)).supports(x, sigma), strict=True):
        q = query.double().numpy()
        proxy = q.reshape(3, 2, 4, 2, 4).mean((2, 4)).reshape(-1)
        pool = np.argsort(((proxies - proxy) ** 2).sum(1))[:m]
        distances = ((images[pool].reshape(m, -1) - q.reshape(-1)) ** 2).sum(1)
        assert set(support.rows) == set(pool[np.argsort(distances)[:k]])
        assert (np.diff(support.rows) > 0).all()


def test_variant_released_draws_at_high_noise_and_searches_at_low_noise(store, queries):
    schedule = PaperSchedule(variant="released")
    golden = GoldDiff(Optimal(store), schedule)
    far, near = queries(store, 60.0), queries(store, 0.01)
    drawn = golden.supports(far, 60.0)
    assert all(np.array_equal(s.rows, drawn[0].rows) for s in drawn)
    images = float64_images(store)
    distances = ((images - near[0].double().numpy().reshape(-1)) ** 2).sum(1)
    assert distances.argmin() in golden.supports(near, 0.01)[0].rows


def test_another_seed_draws_other_images(store, queries):
    x = queries(store, 60.0, b=1)
    schedule = PaperSchedule(variant="released")
    first, same, other = (
        GoldDiff(Optimal(store), schedule, seed=s).supports(x, 60.0)[0].rows for s in (0, 0, 1)
    )
    assert np.array_equal(first, same)
    assert not np.array_equal(first, other)
    golden = GoldDiff(Optimal(store), schedule)
    # Image i has class i % 4. Each class has its own draw, not the same positions.
    one, two = (golden.supports(x, 60.0, label)[0].rows // 4 for label in (1, 2))
    assert not np.array_equal(one, two)


def test_proxies_of_variant_released_have_side_16_or_the_largest_divisor_below():
    assert side_16_shape((3, 32, 28)) == (3, 16, 14)
    assert side_16_shape((1, 8, 34)) == (1, 8, 2)


def test_the_golden_subset_stays_inside_the_class(store, queries):
    x = queries(store, 1.0)
    for variant in ("text", "released"):
        golden = GoldDiff(Optimal(store), PaperSchedule(variant=variant))
        for support in golden.supports(x, 1.0, labels=3):
            assert len(support) == PaperSchedule(variant=variant).budgets(1.0, 50)[1]
            assert (store.labels[torch.from_numpy(support.rows)] == 3).all()


@pytest.mark.parametrize("base", ["optimal", "pca", "kamb", "scfdm", "pspc"])
def test_log_weight_log_k_equals_k_copies(store, queries, base):
    estimator = BASES[base](store)
    x = queries(store, 2.0, b=2).reshape(2, -1).numpy()
    rows = np.array([3, 10, 11, 40, 90])
    weighted = Support(rows, np.log([1.0, 3.0, 1.0, 2.0, 1.0]))
    repeated = Support(np.array([3, 10, 10, 10, 11, 40, 40, 90]))
    a, b = (estimator.denoise_over(x, 2.0, s) for s in (weighted, repeated))
    assert np.abs(a - b).max() < 1e-5


def test_screening_adds_log_weights_to_distances_of_the_whole_image(make_store):
    rng = np.random.default_rng(0)
    coarse = rng.integers(0, 256, (200, 1, 2, 2), dtype=np.uint8)
    store = make_store(coarse.repeat(4, axis=2).repeat(4, axis=3))  # pooling loses nothing
    weights = rng.normal(0, 20, 200)
    logits = weights - np.square(float64_images(store)).sum(axis=1) / 2
    schedule = PaperSchedule(10, 10, 10, 10)
    golden = GoldDiff(Optimal(store), schedule).given(weights)
    (support,) = golden.supports(torch.zeros(1, 1, 8, 8), 1.0)
    assert set(support.rows) == set(np.argsort(-logits)[:10])


def test_golden_pca_is_the_equation_over_its_support(store, queries):
    golden = GoldDiff(PCA(store))
    images = float64_images(store)
    for sigma in (0.1, 1.0, 10.0):
        mask = reference.pca_mask(sigma, images, 0.02)
        x = queries(store, sigma, b=2)
        for i, support in enumerate(golden.supports(x, sigma)):
            q = x[i].double().numpy().reshape(-1)
            direct = reference.pca(q, sigma, images[support.rows], mask)
            got = golden(x[i : i + 1], sigma).numpy().reshape(-1)
            assert np.abs(got - direct).max() < 1e-4


class TestSchedule:
    def test_budgets_of_the_paper(self):
        """Eqs. 4 to 6 with g = sigma / sqrt(1 + sigma^2), N = 50,000."""
        schedule = PaperSchedule()
        for sigma in ddim_sigmas(10):
            g = sigma / (1 + sigma**2) ** 0.5
            m, k = schedule.budgets(sigma, 50_000)
            assert k == int(2500 + 2500 * g)
            assert m == int(5000 + 7500 * (1 - g))

    def test_budgets_of_variant_released(self):
        schedule = PaperSchedule(variant="released")
        assert schedule.budgets(1e9, 50_000) == (5000, 5000)
        assert schedule.budgets(1e-9, 50_000) == (50_000, 2500)

    def test_k_min_above_k_max_raises_k_max_of_variant_released(self):
        """The release's numbers of images drawn and kept: it raises k_max to k_min first."""
        schedule = PaperSchedule(k_min=1 / 4, variant="released")
        budgets = [schedule.budgets(sigma, 50_000) for sigma in ddim_sigmas(10)[4:9]]
        assert budgets == [(m, 12_500) for m in (13_988, 16_324, 20_808, 28_017, 37_857)]
        assert schedule.screened(1.0, 50_000) == 12_500

    @pytest.mark.parametrize("n", [1, 2, 7, 39, 1000])
    @pytest.mark.parametrize("variant", ["text", "released"])
    def test_small_stores_keep_at_least_one_image(self, n, variant):
        for sigma in (0.002, 1.0, 80.0):
            m, k = PaperSchedule(variant=variant).budgets(sigma, n)
            assert 1 <= k <= m <= n

    def test_counts_and_fractions(self):
        assert PaperSchedule(7, 7, 30, 30).budgets(1.0, 100) == (30, 7)
        assert PaperSchedule(0.5, 0.5, 0.1, 0.1).budgets(1.0, 100) == (50, 50)
        assert PaperSchedule(0.29, 0.29).budgets(1.0, 100)[1] == 29  # 0.29 * 100 is below 29
        numbers = np.int64(7), np.uint8(7), np.float32(0.5), np.float64(0.5)
        assert PaperSchedule(*numbers).budgets(1.0, 100) == (50, 7)

    @pytest.mark.parametrize("variant", ["text", "released"])
    @pytest.mark.parametrize("sigma", [0.1, 1.0, 60.0])
    def test_k_is_at_least_k_min_if_k_max_is_smaller(self, variant, sigma):
        assert PaperSchedule(40, 20, variant=variant).budgets(sigma, 100)[1] == 40

    @pytest.mark.parametrize("variant", ["text", "released"])
    def test_a_count_above_the_number_of_images_means_all_of_them(self, variant):
        assert PaperSchedule(60, 60, variant=variant).budgets(1.0, 50) == (50, 50)

    @pytest.mark.parametrize("bad", [0, -1, 0.0, 1.5, float("nan"), True, "10", None])
    def test_a_size_must_be_a_count_or_a_fraction(self, bad):
        with pytest.raises(ArgumentError, match="k_min: got"):
            PaperSchedule(k_min=bad)

    def test_an_unknown_variant_is_an_error(self):
        with pytest.raises(ArgumentError, match="expected 'text' or 'released'"):
            PaperSchedule(variant="paper")


def test_a_schedule_of_another_type_is_refused(store):
    for schedule in ("text", PaperSchedule):
        with pytest.raises(ArgumentError, match=r"schedule: got .*, expected PaperSchedule"):
            GoldDiff(Optimal(store), schedule=schedule)


def test_screening_in_smaller_batches_changes_nothing(store, queries):
    x = queries(store, 1.0, b=7)
    tight = GoldDiff(Optimal(store, memory_limit=24 * store.n * 6))  # screens six queries at a time
    assert torch.equal(tight(x, 1.0), GoldDiff(Optimal(store))(x, 1.0))


def test_wiener_is_refused_as_base(store):
    with pytest.raises(ArgumentError, match="base: got Wiener"):
        GoldDiff(Wiener(store))
