"""The novelty dial: ``recommended(store, novelty)``, calibrated on the store."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import golddiff
from golddiff.estimators.dial import (
    THRESHOLDS,
    Dial,
    _measure,
    _places,
    _relative_sharpness,
    at_threshold,
    dial,
    is_measured,
)
from golddiff.sampling import sample
from golddiff.system.errors import ArgumentError


@pytest.fixture(scope="module")
def store(make_store):
    from golddiff.sources import open_source

    (batch,) = open_source("digits").batches(2000)
    return make_store(batch.pixels, batch.labels)


def test_the_threshold_is_interpolated_and_never_falls():
    measured = Dial(np.array([0.001, 0.01, 0.1, 0.2]), np.array([0.0, 0.5, 0.9, 0.9]))
    thresholds = [measured.threshold(v) for v in np.linspace(0, 1, 21)]
    assert thresholds == sorted(thresholds)
    assert thresholds[0] == 0
    assert measured.threshold(0.5) == 0.01
    assert measured.threshold(0.7) == pytest.approx(0.032, abs=1e-3)
    assert measured.threshold(1) == 0.1  # the smallest threshold of the largest novelty
    assert Dial(np.array([0.001, 0.01]), np.array([0.4, 0.5])).threshold(0.1) == 0.00025


def test_a_higher_dial_gives_more_novel_samples(store):
    runs = [sample(golddiff.recommended(store, v), 12, trajectory=False) for v in (0, 0.4, 0.8)]
    means = [float(run.novelty.novelty.mean()) for run in runs]
    assert means == sorted(means)
    assert runs[0].novelty.copies.all()
    assert means[0] < 0.05


def test_default_samples_of_digits_are_novel_and_as_sharp_as_the_data(store):
    run = sample(golddiff.recommended(store), 32, seed=3, trajectory=False)
    assert 0.5 < float(run.novelty.novelty.mean()) < 1.1
    assert 0.8 < golddiff.metrics.sharpness(run.images, store.images()) < 1.2
    assert 0.7 < golddiff.metrics.speckle(run.images, store.images()) < 1.25


def test_the_dial_is_measured_once_and_saved(store):
    measured, calls = dial(store), []
    reopened = golddiff.ImageStore.open(store.path)
    assert is_measured(reopened)
    assert np.array_equal(dial(reopened, lambda *at: calls.append(at)).novelty, measured.novelty)
    assert not calls
    assert golddiff.recommended(reopened).base.mask_threshold == measured.threshold(0.7)


def test_the_package_contains_the_dial_of_the_default_data(make_store, monkeypatch):
    from golddiff.cli.sample_run import DEFAULT
    from golddiff.sources import open_source

    (batch,) = open_source(DEFAULT.data, limit=DEFAULT.reading.limit).batches(2000)
    store = make_store(batch.pixels)
    assert is_measured(store), "new images or a new dial: what dial(store) keeps goes to data/"
    new = THRESHOLDS[9:]  # the smaller ones give copies
    monkeypatch.setattr("golddiff.estimators.dial.THRESHOLDS", new)
    measured, kept = _measure(store, lambda done, total: None), dial(store)
    assert np.array_equal(kept.thresholds, THRESHOLDS)
    assert np.array_equal(measured.thresholds, new)
    # Rounding may change one of its ten samples.
    assert kept.novelty == pytest.approx(np.append(np.zeros(9), measured.novelty), abs=0.1)
    assert not is_measured(make_store(batch.pixels[:500]))


def test_the_dial_never_falls_and_its_progress_increases_to_the_total(
    make_store, smooth_images, monkeypatch
):
    def falling(images, store):
        return SimpleNamespace(novelty=-torch.arange(float(len(images))))

    calls = []
    monkeypatch.setattr("golddiff.estimators.dial.novelty_of", falling)
    store = make_store(smooth_images(50, (1, 4, 4)))
    novelty = dial(store, lambda done, total: calls.append((done, total))).novelty
    assert (novelty == novelty[0]).all()
    done, totals = zip(*calls, strict=True)
    assert len(set(totals)) == 1
    assert (done[0], done[-1]) == (0, totals[0])
    assert list(done) == sorted(done)


def test_the_dial_ends_where_pictures_are_less_than_two_fifths_as_sharp_as_the_sharpest():
    assert _places(np.array([1.0, 0.9, 0.6, 0.2])).tolist() == [0, 1, 2, pytest.approx(2.5)]
    assert _places(np.array([0.9, 0.3, 1.0, 0.4])).tolist() == [0, 1, 2, 3]
    assert _places(np.array([1.0, 0.2, 0.1])).tolist() == [0, pytest.approx(0.75)]


def test_no_novelty_gives_a_threshold_of_blurred_pictures(make_store, smooth_images, monkeypatch):
    store, sharp = (
        make_store(smooth_images(50, (1, 8, 8))),
        iter([1.0] * 5 + [0.6, 0.2] + [0.1] * 6),
    )
    monkeypatch.setattr("golddiff.estimators.dial.sharpness", lambda *_: next(sharp))
    found = dial(store)
    assert found.thresholds[:6].tolist() == list(THRESHOLDS[:6])
    end = math.sqrt(THRESHOLDS[5] * THRESHOLDS[6])
    assert found.thresholds[6:] == pytest.approx([end], rel=5e-3)
    assert found.threshold(1) <= found.thresholds[-1] * 1.01


def test_sharpness_has_no_meaning_for_points_tiny_images_and_single_colours():
    for shape in ((2, 5), (2, 3, 2, 8), (2, 3, 8, 8)):
        assert _relative_sharpness([torch.ones(shape)] * 3).tolist() == [1, 1, 1]
    sharp = torch.eye(8).expand(2, 1, 8, 8)
    assert _relative_sharpness([sharp / 4, sharp]).tolist() == [0.25, 1]


def test_all_points_are_weighed(make_store):
    """The nearest points at high noise are the outermost."""
    store = make_store(torch.randn(2000, 1, generator=torch.Generator().manual_seed(0)))
    spread = golddiff.sample(golddiff.recommended(store), 300).images.std()
    exact = golddiff.sample(golddiff.Optimal(store), 300).images.std()
    assert spread == pytest.approx(float(exact), rel=0.05)


def test_golden_subsets_have_up_to_32_grey_images_or_a_whole_smaller_class(make_store):
    def schedule(n):
        return at_threshold(make_store(np.zeros((n, 1, 2, 2), np.uint8)), 0.1).schedule

    large, small = schedule(50_000), schedule(2000)
    assert [large.budgets(sigma, 50_000) for sigma in (1e-15, 1e6)] == [(10_000, 16), (4_000, 32)]
    assert [small.budgets(sigma, 2000) for sigma in (1e-15, 1e6)] == [(500, 16), (200, 32)]
    assert [small.budgets(sigma, 20) for sigma in (1e-15, 1e6)] == [(16, 16), (20, 20)]


def test_a_single_training_image_is_refused_before_measuring(
    make_store, smooth_images, monkeypatch
):
    monkeypatch.setattr("golddiff.estimators.dial.steps", None)
    with pytest.raises(ArgumentError, match="holds one, expected two or more"):
        golddiff.recommended(make_store(smooth_images(1, (1, 8, 8))))


def test_photographs_given_twice_have_the_dial_of_photographs_given_once(make_store, smooth_images):
    images = smooth_images(60, (3, 8, 8))
    once, twice = dial(make_store(images)), dial(make_store(torch.cat([images, images])))
    assert once.novelty[-1] > 0.3
    assert twice.novelty[-1] == pytest.approx(once.novelty[-1], rel=0.5)


def test_points_and_three_images_give_finite_samples(make_store, smooth_images):
    points = np.random.default_rng(0).standard_normal((40, 2)).astype(np.float32)
    for data in (make_store(points), make_store(smooth_images(3, (3, 16, 16)))):
        run = sample(golddiff.recommended(data), 3, trajectory=False)
        assert torch.isfinite(run.images).all()


def test_samples_with_a_label_resemble_that_class(store):
    run = sample(golddiff.recommended(store), 4, labels=3, trajectory=False)
    assert (store.labels[run.novelty.nearest] == 3).float().mean() >= 0.5


def test_create_builds_recommended_and_golddiff_pca(store):
    x = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(0)) * 2
    created = golddiff.create("recommended", store, novelty=0.4, seed=2)
    assert torch.equal(created(x, 2.0), golddiff.recommended(store, 0.4, 2)(x, 2.0))
    golden = golddiff.create("golddiff-pca", store, mask_threshold=0.01)
    released = golddiff.PaperSchedule(variant="released")
    direct = golddiff.GoldDiff(golddiff.PCA(store, 0.01), released)
    assert torch.equal(golden(x, 2.0), direct(x, 2.0))


def test_the_default_mask_threshold_is_that_of_the_released_code(store, make_store):
    like_cifar10 = make_store(torch.zeros(3, 3, 32, 32, dtype=torch.uint8))
    for images, threshold in ((store, 0.02), (like_cifar10, 0.03)):
        assert golddiff.create("pca", images).mask_threshold == threshold
        assert golddiff.create("golddiff-pca", images).base.mask_threshold == threshold


@pytest.mark.parametrize("value", [-0.1, 1.5, "high", True, float("nan")])
def test_an_invalid_novelty_is_refused(store, value):
    with pytest.raises(ArgumentError, match="novelty: got"):
        golddiff.recommended(store, value)


def test_settings_unknown_to_a_method_are_refused(store):
    with pytest.raises(ArgumentError, match="magic: no method has it"):
        golddiff.create("golddiff-pca", store, magic=3)
    with pytest.raises(ArgumentError, match="settings: got dict, expected MethodSettings, or tol="):
        golddiff.create("pca", store, {"mask_threshold": 0.1})
    with pytest.raises(ArgumentError, match="novelty: does not apply to method pca"):
        golddiff.create("pca", store, novelty=0.5)
