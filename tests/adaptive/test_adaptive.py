"""AdaptiveSchedule: errors within the tolerance, from few images, with an error estimate."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

import golddiff
from golddiff import PCA, AdaptiveSchedule, GoldDiff, ImageStore, Kamb, Optimal, PaperSchedule
from golddiff.noise import ddim_sigmas
from golddiff.samplers import initial_noise, steps
from golddiff.support import Support, TiledSupport
from golddiff.supports import adaptive
from golddiff.system.errors import ArgumentError
from golddiff.system.parallel import use_threads

BASES = {
    "optimal": Optimal,
    "pca": lambda store: PCA(store, 0.05),
    "kamb": lambda store: Kamb(store, 3),
}
LEVELS = ddim_sigmas(10)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A store of 1,500 handwritten digits of ten classes, and 297 digits outside it."""
    whole = ImageStore.build("digits", tmp_path_factory.mktemp("digits") / "whole")
    images, labels = whole.images(), whole.labels
    store = ImageStore.build(
        images[:1500].numpy(), tmp_path_factory.mktemp("digits") / "some", labels=labels[:1500]
    )
    return store, images[1500:]


@pytest.fixture(scope="module")
def pictures(make_store, smooth_images):
    """A store of 6,000 images of 3 x 12 x 12, and 40 images outside it."""
    images = smooth_images(6040, (3, 12, 12))
    return make_store(images[:6000], torch.arange(6000) % 2), images[6000:].float() / 127.5 - 1


def rmse(a, b):
    return (a - b).flatten(1).square().mean(1).sqrt()


def noised(images, sigma, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return images + sigma * torch.randn(images.shape, generator=generator)


@pytest.fixture(scope="module")
def run_states(digits):
    """The noisy images of a run of another method, one batch per noise level."""
    store, _ = digits
    denoiser = GoldDiff(PCA(store, 0.05), PaperSchedule())
    return [state.x for state in steps(denoiser, initial_noise(8, store.shape, 5), LEVELS)]


@pytest.mark.parametrize("base", BASES)
def test_95_percent_of_the_errors_are_within_tol(digits, run_states, base):
    """The queries are noised images outside and inside the store, and states of another run."""
    store, held_out = digits
    full = BASES[base](store)
    within = not_full = 0
    for i, (sigma, states) in enumerate(zip(LEVELS, run_states, strict=True)):
        members = store.images(range(0, 160, 20))
        x = torch.cat([noised(held_out[:8], sigma), noised(members, sigma), states])
        expected = full(x, sigma)
        tol = (0.05, 0.02)[i % 2]
        golden = GoldDiff(full, AdaptiveSchedule(tol, index=base == "optimal"))
        out, estimates = golden.estimated(x, sigma)
        true_errors = rmse(out, expected)
        within += int((true_errors <= tol).sum())
        assert (true_errors <= tol).sum() >= 21, (tol, sigma, true_errors)
        not_full += int((estimates > 0).sum())
    assert within >= 0.95 * 10 * 24
    if base != "kamb":  # its small patches may match any image
        assert not_full > 25


def test_an_index_that_describes_noise_poorly_rarely_misses_the_nearest(make_store):
    """It keeps 1/16 of each image; its order alone missed the nearest of 32 of these 64 queries."""
    rng = np.random.default_rng(0)
    store = make_store(rng.integers(0, 256, (4000, 1, 16, 16), np.uint8))
    x = torch.from_numpy(rng.uniform(-1, 1, (64, 1, 16, 16)).astype(np.float32))
    full = Optimal(store)
    golden = GoldDiff(full, AdaptiveSchedule(0.05, index=True))
    assert (rmse(golden(x, 0.1), full(x, 0.1)) <= 0.05).sum() >= 62


def test_estimated_errors_are_within_a_factor_3_of_true_errors(pictures):
    store, held_out = pictures
    full = PCA(store, 0.05)
    estimates, true_errors = [], []
    for sigma in (40.0, 6.0, 2.0, 0.5, 0.1):
        x = noised(held_out[:10], sigma)
        expected = full(x, sigma)
        for tol in (0.2, 0.08, 0.03):
            out, estimated = GoldDiff(full, AdaptiveSchedule(tol)).estimated(x, sigma)
            estimates.append(estimated.numpy())
            true_errors.append(rmse(out, expected).numpy())
    estimated, actual = np.concatenate(estimates), np.concatenate(true_errors)
    drawn = estimated > 0
    assert drawn.mean() > 0.5
    assert spearmanr(estimated[drawn], actual[drawn])[0] > 0.7
    ratio = estimated[drawn] / actual[drawn]
    assert np.mean((ratio > 1 / 3) & (ratio < 3)) >= 0.9


def test_images_that_decide_a_few_outputs_are_not_missed(pictures):
    """Regression: draws for noised training images, which decide most outputs, agreed on errors."""
    store, _ = pictures
    full = PCA(store, 0.05)
    x = noised(store.images(range(20)), 0.1)
    assert (rmse(GoldDiff(full, AdaptiveSchedule(0.05))(x, 0.1), full(x, 0.1)) <= 0.05).all()


def test_a_larger_tol_weighs_fewer_images(pictures):
    store, held_out = pictures
    for sigma in (40.0, 6.0):
        x = noised(held_out[:4], sigma).flatten(1).numpy()
        sizes = [
            np.mean([len(s) for s in schedule.supports(store, x, sigma, None, 0)])
            for schedule in (fitted(PCA(store, 0.05), tol) for tol in (0.1, 0.05, 0.001))
        ]
        assert sizes[0] <= sizes[1] <= sizes[2] <= store.n
        assert sizes[0] < sizes[2]
        assert sizes[0] < store.n / 8


def fitted(estimator, tol):
    return AdaptiveSchedule(tol).fitted(estimator)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("labels", [None, 2])
def test_tol_0_is_the_full_scan(digits, base, labels):
    store, held_out = digits
    full = BASES[base](store)
    golden = GoldDiff(full, AdaptiveSchedule(0))
    for sigma in (0.05, 1.0, 30.0):
        x = noised(held_out[:3], sigma)
        assert torch.equal(golden(x, sigma, labels), full(x, sigma, labels))
        assert not golden.estimated(x, sigma, labels)[1].any()


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("sigma", [40.0, 3.0, 0.3])
def test_outputs_do_not_depend_on_batch_threads_or_memory(pictures, sigma):
    """Outputs are bitwise equal, except under another memory limit (within 1e-4)."""
    store, held_out = pictures
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
    x = noised(held_out[:6], sigma)
    together = golden(x, sigma)
    assert torch.equal(golden(x.flip(0), sigma).flip(0), together)
    use_threads(1)
    for i in range(6):
        assert torch.equal(golden(x[i : i + 1], sigma)[0], together[i])
    use_threads(2)
    second = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
    assert torch.equal(second(x, sigma), together)
    low_memory = GoldDiff(PCA(store, 0.05, memory_limit=4e6), AdaptiveSchedule(0.1))
    assert (low_memory(x, sigma) - together).abs().max() < 1e-4


def test_another_seed_draws_other_images(pictures):
    store, held_out = pictures
    x = noised(held_out[:2], 40.0)
    first, second = (
        GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1), seed=s)(x, 40.0) for s in (0, 1)
    )
    assert not torch.equal(first, second)
    assert rmse(first, second).max() < 0.2


def test_the_size_of_the_distance_buffer_changes_nothing(pictures, monkeypatch):
    store, held_out = pictures
    x = noised(held_out[:5], 2.0)
    expected = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))(x, 2.0)
    monkeypatch.setattr(adaptive, "MAX_DISTANCE_BYTES", 1.0)
    assert torch.equal(GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))(x, 2.0), expected)


@pytest.mark.parametrize("sigma", [40.0, 3.0, 0.3])
def test_the_reported_supports_reproduce_the_output(pictures, sigma):
    store, held_out = pictures
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
    x = noised(held_out[:4], sigma)
    supports = golden.supports(x, sigma)
    means = golden.base.denoise_over(x.flatten(1).numpy(), sigma, supports)
    assert rmse(torch.from_numpy(means).reshape(x.shape), golden(x, sigma)).max() < 1e-5


def test_supports_are_per_tile_where_masks_are_narrow(pictures):
    store, held_out = pictures
    whole = GoldDiff(Optimal(store), AdaptiveSchedule(0.1, index=True))
    golden = GoldDiff(BASES["pca"](store), AdaptiveSchedule(0.1))
    (wide,) = whole.supports(noised(held_out[:1], 60.0), 60.0)
    (narrow,) = golden.supports(noised(held_out[:1], 0.3), 0.3)
    assert isinstance(wide, Support)
    assert isinstance(narrow, TiledSupport)
    assert len(narrow.tiles) == 9


@pytest.mark.parametrize("sigma", [20.0, 0.7])
def test_attribution_sums_to_the_output(pictures, sigma):
    store, held_out = pictures
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.2))
    x = noised(held_out[:2], sigma)
    for image, attribution in zip(golden(x, sigma), golden.attribute(x, sigma, top=4), strict=True):
        assert (attribution.reconstruct() - image).abs().max() < 1e-4
        assert attribution.weights.min() >= 0
        assert attribution.mass.max() <= 1 + 1e-9


def test_many_images_of_low_weight_beside_a_heavy_one_count(pictures):
    """Image 7 has 88% of the prior; the others have the rest together."""
    store, _ = pictures
    weights = np.where(np.arange(store.n) == 7, 10.7, 0.0)
    full = PCA(store).given(weights)
    golden = GoldDiff(PCA(store), AdaptiveSchedule(0.02)).given(weights)
    x = 60 * initial_noise(4, store.shape, 0)
    assert rmse(golden(x, 60.0), full(x, 60.0)).max() <= 0.02


def test_supports_with_a_label_hold_only_that_class(pictures):
    store, held_out = pictures
    full = PCA(store, 0.05)
    golden = GoldDiff(full, AdaptiveSchedule(0.1))
    for sigma in (40.0, 0.5):
        x = noised(held_out[:3], sigma)
        for support in golden.supports(x, sigma, labels=1):
            assert (store.labels[torch.from_numpy(support.rows)] == 1).all()
        assert rmse(golden(x, sigma, 1), full(x, sigma, 1)).max() < 0.15


@pytest.fixture(scope="module")
def indexed(make_store, smooth_images):
    """A store of 4,000 images of 3 x 16 x 16, for an index, and 10 images outside it."""
    images = smooth_images(4010, (3, 16, 16))
    return make_store(images[:4000]), images[4000:].float() / 127.5 - 1


@pytest.mark.parametrize("base", ["optimal", "pca"])
def test_errors_are_within_tol_with_an_index(indexed, base):
    store, held_out = indexed
    full = BASES[base](store)
    golden = GoldDiff(full, AdaptiveSchedule(0.1, index=True))
    for sigma in (40.0, 3.0, 0.3):
        x = noised(held_out[:10], sigma)
        errors = rmse(golden(x, sigma), full(x, sigma))
        assert (errors <= 0.1).sum() >= 9
    assert (store.path / "index" / "index.json").exists()


def test_at_low_noise_small_supports_hold_the_nearest_image(indexed):
    store, held_out = indexed
    golden = GoldDiff(Optimal(store), AdaptiveSchedule(0.1, index=True))
    x = torch.cat([noised(held_out[:8], 0.3), noised(store.images(range(8)), 0.3)])
    for query, support in zip(x, golden.supports(x, 0.3), strict=True):
        assert len(support.rows) < 500
        squares = (store.images(range(store.n)) - query).square().flatten(1).sum(dim=1)
        assert int(squares.argmin()) in support.rows


def test_seamless_pca_does_not_miss_a_dominant_image(make_store):
    generator = torch.Generator().manual_seed(0)
    dots = torch.rand((2000, 3, 8, 8), generator=generator) < 0.2
    store = make_store(255 * dots.to(torch.uint8))
    base = PCA(store, 0.02, share="seamless")
    x = store.images(range(8)) + 0.1 * torch.randn(8, 3, 8, 8, generator=generator)
    # A draw without the dominant image had an error of 0.43, and an estimate of 4e-6.
    assert rmse(GoldDiff(base, AdaptiveSchedule())(x, 0.1), base(x, 0.1)).max() < 0.02


class DrawnOptimal(Optimal):
    """Optimal, declared to have several logits per image, so that the schedule draws images."""

    joint = False


def test_first_draws_come_from_a_random_sample_of_8192(make_store):
    """Errors are relative to all 20,000 images, and outputs do not depend on the batch."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20_000, 1, 6, 6), dtype=torch.uint8, generator=generator)
    store = make_store(images)
    full = DrawnOptimal(store)
    lowest_weights = []
    golden = GoldDiff(full, AdaptiveSchedule(0.1))
    for sigma in (40.0, 4.0, 1.0, 0.2):
        x = noised(store.images(range(20)), sigma)
        out = golden(x, sigma)
        assert (rmse(out, full(x, sigma)) <= 0.1).sum() >= 19
        assert torch.equal(golden(x[3:4], sigma)[0], out[3])
        (support,) = golden.supports(x[:1], sigma)
        lowest_weights.append(support.log_importance().min())
    assert lowest_weights[0] >= np.log(20_000 / 8192) - 1e-6  # each image stands for several
    assert lowest_weights[-1] == 0  # dominant images are always drawn


def test_denoising_writes_no_files(digits):
    store, held_out = digits
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*")}
    GoldDiff(Optimal(store), AdaptiveSchedule(0.05))(noised(held_out[:2], 1.0), 1.0)
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*")} == before


def test_an_unreachable_tol_weighs_all_images(pictures):
    store, held_out = pictures
    full = PCA(store, 0.05)
    golden = GoldDiff(full, AdaptiveSchedule(1e-6))
    for sigma in (3.0, 1.0):
        x = noised(held_out[:2], sigma)
        assert torch.equal(golden(x, sigma), full(x, sigma))


@pytest.mark.parametrize("base", ["optimal", "pca", "kamb"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_up_to_5_images_are_all_weighed(make_store, smooth_images, base, n):
    store = make_store(smooth_images(n, (1, 8, 8)))
    full = BASES[base](store)
    x = noised(store.images(), 0.5)
    assert torch.equal(GoldDiff(full, AdaptiveSchedule(0.05))(x, 0.5), full(x, 0.5))


@pytest.mark.parametrize("base", ["optimal", "kamb"])
def test_identical_images_are_the_output(make_store, base):
    store = make_store(torch.full((1500, 1, 8, 8), 200, dtype=torch.uint8))
    golden = GoldDiff(BASES[base](store), AdaptiveSchedule(0.05))
    for sigma in (0.01, 1.0, 50.0):
        out = golden(noised(store.images(range(3)), sigma), sigma)
        assert (out - store.images([0])).abs().max() < 1e-5


def test_optimal_without_an_index_weighs_all_images(digits):
    store, held_out = digits
    full, x = Optimal(store), noised(held_out[:4], 3.0)
    golden = GoldDiff(full, AdaptiveSchedule(0.2))
    assert torch.equal(golden(x, 3.0), full(x, 3.0))
    assert not golden.estimated(x, 3.0)[1].any()


def test_wss_weighs_all_images(digits):
    store, held_out = digits
    full = PCA(store, 0.05, weighting="wss")
    x = noised(held_out[:2], 1.0)
    assert torch.equal(GoldDiff(full, AdaptiveSchedule(0.05))(x, 1.0), full(x, 1.0))


@pytest.mark.parametrize("tol", [-0.1, float("nan"), float("inf"), "paper", None, True, [0.1]])
def test_an_invalid_tol_is_refused(tol):
    with pytest.raises(ArgumentError, match=r"tol: got .*expected a finite number of 0 or more"):
        AdaptiveSchedule(tol)


def test_samples_report_their_estimated_errors(digits):
    store, _ = digits
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05))
    samples = golddiff.sample(golden, n=5, steps=4, batch_size=2)
    assert samples.errors.shape == (4, 5)
    assert ((samples.errors >= 0) & (samples.errors <= 0.05)).all()
    assert golddiff.sample(Optimal(store), n=2, steps=2).errors is None
    assert golddiff.sample(golden, n=1, steps=1, attribution=True).errors is None
    with pytest.raises(ArgumentError, match="expected AdaptiveSchedule"):
        GoldDiff(Optimal(store)).estimated(samples.images, 1.0)


def test_a_description_builds_the_same_denoiser(digits):
    from golddiff.estimators.describe import build, describe

    store, held_out = digits
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.07), seed=3)
    rebuilt = build(describe(golden), store)
    x = noised(held_out[:2], 1.0)
    assert torch.equal(rebuilt(x, 1.0), golden(x, 1.0))
    proved = GoldDiff(Optimal(store), AdaptiveSchedule(0.05, guarantee=True, index=True))
    assert repr(build(describe(proved), store)) == repr(proved)


@pytest.mark.parametrize("sigma", [0.1, 0.5])
def test_an_image_that_decides_is_found_among_copies(make_store, digits, sigma):
    """Copies share their weight, so that none of them looks decisive; 28% of outputs were wrong."""
    images = digits[0].images()
    store = make_store(images[::2].repeat(4, 1, 1, 1))
    x = images[1::2][:100]
    x = x + sigma * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    full = Optimal(store)
    out, _ = GoldDiff(full, AdaptiveSchedule(0.02, index=True)).estimated(x, sigma)
    errors = (out - full(x, sigma)).square().mean(dim=(1, 2, 3)).sqrt()
    assert (errors > 0.02).sum() <= 1
