"""AdaptiveSchedule: the error that was asked for, from as few images as it takes, and it knows."""

import numpy as np
import pytest
import torch
from scipy.stats import f, spearmanr

import golddiff
from golddiff import PCA, AdaptiveSchedule, GoldDiff, ImageStore, Kamb, Optimal, PaperSchedule
from golddiff.noise import ddim_sigmas
from golddiff.samplers import initial_noise, steps
from golddiff.support import Support, TiledSupport
from golddiff.supports import adaptive, rule
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
    """1,500 handwritten digits, of ten classes, and 297 that are not in the store."""
    whole = ImageStore.build("digits", tmp_path_factory.mktemp("digits") / "whole")
    images, labels = whole.images(), whole.labels
    store = ImageStore.build(
        images[:1500].numpy(), tmp_path_factory.mktemp("digits") / "some", labels=labels[:1500]
    )
    return store, images[1500:]


@pytest.fixture(scope="module")
def pictures(make_store, smooth_images):
    """6,000 images of 3 x 12 x 12, and 40 that are not in the store."""
    images = smooth_images(6040, (3, 12, 12))
    return make_store(images[:6000], torch.arange(6000) % 2), images[6000:].float() / 127.5 - 1


def rmse(a, b):
    return (a - b).flatten(1).square().mean(1).sqrt()


def noised(images, sigma, seed=3):
    generator = torch.Generator().manual_seed(seed)
    return images + sigma * torch.randn(images.shape, generator=generator)


@pytest.fixture(scope="module")
def points_of_a_run(digits):
    """Where a run of another method comes by, level by level."""
    store, _ = digits
    denoiser = GoldDiff(PCA(store, 0.05), PaperSchedule())
    return [state.x for state in steps(denoiser, initial_noise(8, store.shape, 5), LEVELS)]


@pytest.mark.parametrize("base", BASES)
def test_queries_are_within_the_error_at_every_level(digits, points_of_a_run, base):
    """95 of 100: noised images that are in the store, and are not; points of another's run."""
    store, others = digits
    full, run = BASES[base](store), points_of_a_run
    within = saved = 0
    for sigma, passed in zip(LEVELS, run, strict=True):
        inside = store.images(range(0, 160, 20))
        x = torch.cat([noised(others[:8], sigma), noised(inside, sigma), passed])
        expected = full(x, sigma)
        for tol in (0.05, 0.02):
            golden = GoldDiff(full, AdaptiveSchedule(tol, index=base == "optimal"))
            out, errors = golden.estimated(x, sigma)
            off = rmse(out, expected)
            within += int((off <= tol).sum())
            assert (off <= tol).sum() >= 21, (tol, sigma, off)
            saved += int((errors > 0).sum())
    assert within >= 0.95 * 2 * 10 * 24
    if base != "kamb":  # whose small patches may come from any image
        assert saved > 50


def test_an_index_that_tells_little_does_not_mislead(make_store):
    """Of images of noise it holds a sixteenth: the one that decides may be anywhere in its order.

    One query in a hundred may take another; 32 of these 64 did while the order alone was asked.
    """
    rng = np.random.default_rng(0)
    store = make_store(rng.integers(0, 256, (4000, 1, 16, 16), np.uint8))
    x = torch.from_numpy(rng.uniform(-1, 1, (64, 1, 16, 16)).astype(np.float32))
    full = Optimal(store)
    golden = GoldDiff(full, AdaptiveSchedule(0.05, index=True))
    assert (rmse(golden(x, 0.1), full(x, 0.1)) <= 0.05).sum() >= 62


def test_the_estimate_tells_the_error(pictures):
    store, others = pictures
    full = PCA(store, 0.05)
    errors, off = [], []
    for sigma in (40.0, 6.0, 2.0, 0.5, 0.1):
        x = noised(others[:10], sigma)
        expected = full(x, sigma)
        for tol in (0.2, 0.08, 0.03):
            out, told = GoldDiff(full, AdaptiveSchedule(tol)).estimated(x, sigma)
            errors.append(told.numpy())
            off.append(rmse(out, expected).numpy())
    told, true = np.concatenate(errors), np.concatenate(off)
    some = told > 0
    assert some.mean() > 0.5
    assert spearmanr(told[some], true[some])[0] > 0.7
    ratio = told[some] / true[some]
    assert np.mean((ratio > 1 / 3) & (ratio < 3)) >= 0.9


def test_fewer_images_do_where_more_error_is_allowed(pictures):
    store, others = pictures
    for sigma in (40.0, 6.0):
        x = noised(others[:4], sigma).flatten(1).numpy()
        sizes = [
            np.mean([w.images for w in fitted(PCA(store, 0.05), tol).weighed(x, sigma, None, 0)])
            for tol in (0.1, 0.05, 0.001)
        ]
        assert sizes[0] <= sizes[1] <= sizes[2] <= store.n
        assert sizes[0] < sizes[2]
        assert sizes[0] < store.n / 8


def fitted(estimator, tol):
    return AdaptiveSchedule(tol).fitted(estimator)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("labels", [None, 2])
def test_tol_0_is_the_full_scan(digits, base, labels):
    store, others = digits
    full = BASES[base](store)
    golden = GoldDiff(full, AdaptiveSchedule(0))
    for sigma in (0.05, 1.0, 30.0):
        x = noised(others[:3], sigma)
        assert torch.equal(golden(x, sigma, labels), full(x, sigma, labels))
        assert not golden.estimated(x, sigma, labels)[1].any()


@pytest.mark.parametrize("sigma", [40.0, 3.0, 0.3])
def test_a_result_is_its_query_s_alone(pictures, sigma):
    """Whatever its batch and the threads, to the bit; and the memory there is."""
    store, others = pictures
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
    x = noised(others[:6], sigma)
    together = golden(x, sigma)
    assert torch.equal(golden(x.flip(0), sigma).flip(0), together)
    use_threads(1)
    for i in range(6):
        assert torch.equal(golden(x[i : i + 1], sigma)[0], together[i])
    use_threads(2)
    again = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
    assert torch.equal(again(x, sigma), together)
    little = GoldDiff(PCA(store, 0.05, memory_limit=4e6), AdaptiveSchedule(0.1))
    assert (little(x, sigma) - together).abs().max() < 1e-4


def test_the_seed_decides_what_is_drawn(pictures):
    store, others = pictures
    x = noised(others[:2], 40.0)
    one, other = (
        GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1), seed=s)(x, 40.0) for s in (0, 1)
    )
    assert not torch.equal(one, other)
    assert rmse(one, other).max() < 0.2


def test_how_much_is_held_at_once_changes_nothing(pictures, monkeypatch):
    store, others = pictures
    x = noised(others[:5], 2.0)
    before = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))(x, 2.0)
    monkeypatch.setattr(adaptive, "MAX_DISTANCE_BYTES", 1.0)
    assert torch.equal(GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))(x, 2.0), before)


@pytest.mark.parametrize("sigma", [40.0, 3.0, 0.3])
def test_what_is_told_as_support_gives_the_output_again(pictures, sigma):
    store, others = pictures
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
    x = noised(others[:4], sigma)
    supports = golden.supports(x, sigma)
    means = golden.base.denoise_over(x.flatten(1).numpy(), sigma, supports)
    assert rmse(torch.from_numpy(means).reshape(x.shape), golden(x, sigma)).max() < 1e-5


def test_tiles_choose_where_masks_are_narrow(pictures):
    store, others = pictures
    whole = GoldDiff(Optimal(store), AdaptiveSchedule(0.1, index=True))
    golden = GoldDiff(BASES["pca"](store), AdaptiveSchedule(0.1))
    (wide,) = whole.supports(noised(others[:1], 60.0), 60.0)
    (narrow,) = golden.supports(noised(others[:1], 0.3), 0.3)
    assert isinstance(wide, Support)
    assert isinstance(narrow, TiledSupport)
    assert len(narrow.tiles) == 9
    assert "tile" not in whole.describe_step(60.0)
    assert "4x4" in golden.describe_step(0.3)


@pytest.mark.parametrize("sigma", [20.0, 0.7])
def test_attribution_sums_to_the_output(pictures, sigma):
    store, others = pictures
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.2))
    x = noised(others[:2], sigma)
    for one, attribution in zip(golden(x, sigma), golden.attribute(x, sigma, top=4), strict=True):
        assert (attribution.reconstruct() - one).abs().max() < 1e-4
        assert attribution.weights.min() >= 0
        assert attribution.mass.max() <= 1 + 1e-9


def test_with_labels_images_are_of_the_class(pictures):
    store, others = pictures
    full = PCA(store, 0.05)
    golden = GoldDiff(full, AdaptiveSchedule(0.1))
    for sigma in (40.0, 0.5):
        x = noised(others[:3], sigma)
        for support in golden.supports(x, sigma, labels=1):
            assert (store.labels[torch.from_numpy(support.rows)] == 1).all()
        assert rmse(golden(x, sigma, 1), full(x, sigma, 1)).max() < 0.15


@pytest.fixture(scope="module")
def searched(make_store, smooth_images):
    """4,000 images of 3 x 16 x 16, whose index is made once, and 10 that are not in the store."""
    images = smooth_images(4010, (3, 16, 16))
    return make_store(images[:4000]), images[4000:].float() / 127.5 - 1


@pytest.mark.parametrize("base", ["optimal", "pca"])
def test_through_the_index_too(searched, base):
    store, others = searched
    full = BASES[base](store)
    golden = GoldDiff(full, AdaptiveSchedule(0.1, index=True))
    for sigma in (40.0, 3.0, 0.3):
        x = noised(others[:10], sigma)
        off = rmse(golden(x, sigma), full(x, sigma))
        assert (off <= 0.1).sum() >= 9
    assert (store.path / "index" / "index.json").exists()


def test_the_nearest_of_the_index_are_enough_where_single_images_decide(searched):
    store, others = searched
    golden = GoldDiff(Optimal(store), AdaptiveSchedule(0.1, index=True))
    x = torch.cat([noised(others[:8], 0.3), noised(store.images(range(8)), 0.3)])
    for query, support in zip(x, golden.supports(x, 0.3), strict=True):
        assert len(support.rows) < 500
        squares = (store.images(range(store.n)) - query).square().flatten(1).sum(dim=1)
        assert int(squares.argmin()) in support.rows


def test_all_are_weighed_where_single_images_decide_and_there_are_no_tiles(make_store):
    generator = torch.Generator().manual_seed(0)
    dots = torch.rand((2000, 3, 8, 8), generator=generator) < 0.2
    store = make_store(255 * dots.to(torch.uint8))
    base = PCA(store, 0.02, share="seamless")
    x = store.images(range(8)) + 0.1 * torch.randn(8, 3, 8, 8, generator=generator)
    # A draw that lacked the image that decides was off by 0.43, and its estimate 4e-6.
    assert rmse(GoldDiff(base, AdaptiveSchedule())(x, 0.1), base(x, 0.1)).max() < 0.02


class Choosing(Optimal):
    """Chooses images though it could weigh all as quickly: its distances are exact."""

    one_logit = False


def test_the_first_images_are_drawn_from_a_sample(make_store):
    """Of 20,000 images 8,192: the error is that to all, and a result its query's alone."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (20_000, 1, 6, 6), dtype=torch.uint8, generator=generator)
    store = make_store(images)
    full = Choosing(store)
    compared = []
    golden = GoldDiff(full, AdaptiveSchedule(0.1))
    for sigma in (40.0, 4.0, 1.0, 0.2):
        x = noised(store.images(range(20)), sigma)
        out = golden(x, sigma)
        assert (rmse(out, full(x, sigma)) <= 0.1).sum() >= 19
        assert torch.equal(golden(x[3:4], sigma)[0], out[3])
        (support,) = golden.supports(x[:1], sigma)
        compared.append(support.log_importance().min())
    assert compared[0] >= np.log(20_000 / 8192) - 1e-6  # each stands for more than itself
    assert compared[-1] == 0  # those that decide are sure


def test_few_directions_take_a_larger_margin():
    assert rule.margin(2) > rule.margin(6) > rule.margin(1000) > 1
    for d in (12, 24, 60, 100):
        assert rule.margin(d) == pytest.approx(f.ppf(0.95, d, 3 * d) ** 0.5, rel=0.08)
    assert rule.samples_of(5000, False) == [5000]
    assert rule.samples_of(50_000, False) == [8192, 50_000]
    assert rule.samples_of(50_000, True) == [50_000]
    assert rule.samples_of(1_280_000, False) == [8192, 131_072, 1_280_000]
    assert rule.samples_of(1_280_000, True) == [8192, 131_072, 1_280_000]


def test_nothing_is_measured_or_written(digits):
    store, others = digits
    before = {path: path.stat().st_mtime_ns for path in store.path.rglob("*")}
    GoldDiff(Optimal(store), AdaptiveSchedule(0.05))(noised(others[:2], 1.0), 1.0)
    assert {path: path.stat().st_mtime_ns for path in store.path.rglob("*")} == before


def test_old_plans_beside_a_store_are_ignored(make_store, smooth_images, caplog):
    images = smooth_images(1300, (1, 8, 8))
    store = make_store(images)
    x = noised(store.images(range(3)), 1.0)
    before = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05))(x, 1.0)
    for text in ("{", '{"plans": {"key": {"kind": "full", "k": 1}}}'):
        (store.path / "plans.json").write_text(text)
        again = ImageStore.open(store.path)
        assert torch.equal(GoldDiff(PCA(again, 0.05), AdaptiveSchedule(0.05))(x, 1.0), before)
    assert not caplog.records


def test_an_error_that_no_few_images_have_takes_all_and_says_so_once(pictures, caplog):
    store, others = pictures
    full = PCA(store, 0.05)
    golden = GoldDiff(full, AdaptiveSchedule(1e-6))
    with caplog.at_level("INFO", "golddiff"):
        for sigma in (3.0, 1.0):
            x = noised(others[:2], sigma)
            assert torch.equal(golden(x, sigma), full(x, sigma))
    assert len([r for r in caplog.records if "takes all images" in r.message]) == 1


@pytest.mark.parametrize("base", ["optimal", "pca", "kamb"])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_few_images(make_store, smooth_images, base, n):
    store = make_store(smooth_images(n, (1, 8, 8)))
    full = BASES[base](store)
    x = noised(store.images(), 0.5)
    assert torch.equal(GoldDiff(full, AdaptiveSchedule(0.05))(x, 0.5), full(x, 0.5))


@pytest.mark.parametrize("base", ["optimal", "kamb"])
def test_equal_images(make_store, base):
    store = make_store(torch.full((1500, 1, 8, 8), 200, dtype=torch.uint8))
    golden = GoldDiff(BASES[base](store), AdaptiveSchedule(0.05))
    for sigma in (0.01, 1.0, 50.0):
        out = golden(noised(store.images(range(3)), sigma), sigma)
        assert (out - store.images([0])).abs().max() < 1e-5


def test_optimal_without_an_index_weighs_all(digits):
    store, others = digits
    full, x = Optimal(store), noised(others[:4], 3.0)
    golden = GoldDiff(full, AdaptiveSchedule(0.2))
    assert torch.equal(golden(x, 3.0), full(x, 3.0))
    assert not golden.estimated(x, 3.0)[1].any()
    assert golden.describe_step(3.0) == "weighs all 1,500 images"


def test_points(make_store):
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(3000, 2, generator=generator)
    store = make_store(points)
    full = Optimal(store)
    golden = GoldDiff(full, AdaptiveSchedule(0.05))
    for sigma in (0.05, 0.5, 5.0):
        x = noised(points[:20], sigma)
        assert (rmse(golden(x, sigma), full(x, sigma)) <= 0.05).sum() >= 19


def test_averages_of_batches_are_those_of_all_images(digits):
    store, others = digits
    full = PCA(store, 0.05, weighting="wss")
    x = noised(others[:2], 1.0)
    assert torch.equal(GoldDiff(full, AdaptiveSchedule(0.05))(x, 1.0), full(x, 1.0))


@pytest.mark.parametrize("tol", [-0.1, float("nan"), float("inf"), "paper", None, True, [0.1]])
def test_a_bad_tol_is_named(tol):
    with pytest.raises(ArgumentError, match=r"tol: got .*expected a finite number of 0 or more"):
        AdaptiveSchedule(tol)


def test_samples_tell_their_errors(digits):
    store, _ = digits
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05))
    samples = golddiff.sample(golden, n=5, steps=4, batch_size=2)
    assert samples.errors.shape == (4, 5)
    assert (samples.errors >= 0).all()
    assert (samples.errors <= 0.05).all()
    assert golddiff.sample(Optimal(store), n=2, steps=2).errors is None
    with pytest.raises(ArgumentError, match="expected AdaptiveSchedule"):
        GoldDiff(Optimal(store)).estimated(samples.images, 1.0)


def test_a_description_builds_the_same_denoiser(digits):
    from golddiff.estimators.describe import build, describe

    store, others = digits
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.07), seed=3)
    again = build(describe(golden), store)
    x = noised(others[:2], 1.0)
    assert torch.equal(again(x, 1.0), golden(x, 1.0))
