"""Restorations: against the equation in float64, at both extremes of noise, and bad input."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import golddiff
from golddiff import ArgumentError
from golddiff.estimators import dial, operators, restoring
from golddiff.estimators.masks import locality_mask
from golddiff.estimators.measurement import expected, measurements
from golddiff.estimators.restoring import Restoring, for_restoring
from golddiff.evaluation.restored import halves, parts_of
from golddiff.sources.picture import fit_to_shape
from golddiff.support import LogWeights
from tests.restore.operators_for_tests import OPERATORS, SHAPE, operator_matrix


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("share", [None, "pixel"])
@pytest.mark.parametrize("sigma", [0.2, 3.0])
def test_one_step_agrees_with_the_equation_in_float64(store, other, name, share, sigma):
    softness = 0.3
    noise, y, threshold = 0.4, OPERATORS[name](other[:1]), 0.1
    base, schedule = parts_of(golddiff.PCA(store, threshold, share=share))
    measurement = measurements(OPERATORS[name], y, SHAPE, 0.0, noise)[0]
    uniform = LogWeights.of(np.zeros(60))
    x = other[1:2] + sigma * torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(1))
    restoring = Restoring(base, schedule, measurement, uniform, base, softness)
    flat = x.reshape(1, -1).numpy()

    a, images = operator_matrix(OPERATORS[name]), store.images().reshape(60, -1).double().numpy()
    mask = locality_mask(store.factor(), sigma, threshold).astype(float)
    weights = np.abs(a) @ mask / np.abs(a).sum(axis=1, keepdims=True)  # W, (c, q)
    query = x.reshape(-1).double().numpy()
    logits = -np.square(query - images) @ mask / (2 * (sigma**2 + softness**2))
    logits -= np.square(y.reshape(-1).double().numpy() - images @ a.T) @ weights / (2 * noise**2)
    if share == "pixel":
        logits = np.tile(logits.reshape(60, 3, 64).mean(axis=1), (1, 3))
    e = np.exp(logits - logits.max(axis=0))
    mean = (e * images).sum(axis=0) / e.sum(axis=0)
    _, supports = restoring.estimator_supports(flat, sigma, None)
    assert np.abs(restoring.denoise_over(flat, sigma, supports)[0] - mean).max() < 2e-5

    residual = y.reshape(-1).double().numpy() - a @ mean
    steps = np.diff(np.eye(8), axis=0)
    along_line = np.kron(np.eye(8), steps.T @ steps)
    across = np.kron(steps.T @ steps, np.eye(8))
    kernel = np.linalg.inv(np.eye(64) * 4 / 8 + along_line + across)
    gain = np.kron(np.eye(3), kernel) @ a.T  # K A^T
    mean = mean + gain @ np.linalg.pinv(a @ gain) @ residual
    restored = restoring(x, sigma).reshape(-1).double().numpy()
    # LSQR only approximates the inverse, worst for a blur.
    assert np.abs(restored - mean.clip(-1, 1)).max() < (0.1 if name == "blurred" else 0.05)


def test_golden_subsets_are_the_nearest_to_x_and_y_and_keep_the_users_weights(store, other):
    base, sigma, softness, noise = golddiff.PCA(store, 0.1), 0.2, 0.5, 0.4
    schedule, operator = golddiff.PaperSchedule(20, 20, 60, 60), OPERATORS["smaller"]
    y, x = operator(other[:1]), other[1:2]
    prior = np.random.default_rng(0).normal(0, 5, 60)
    (measured,) = measurements(operator, y, SHAPE, 0.0, noise)
    fit = golddiff.log_likelihood(store, operator, y, noise)[0].numpy()
    restoring = Restoring(base, schedule, measured, LogWeights.of(fit), base.given(prior), softness)
    flat = x.reshape(1, -1).numpy()
    squares = (store.images() - x).square().sum(dim=(1, 2, 3)).double().numpy()
    score = prior + fit - squares / (2 * (sigma**2 + softness**2))
    _, (support,) = restoring.estimator_supports(flat, sigma, LogWeights.of(prior))
    assert support.rows.tolist() == sorted(np.argsort(-score)[:20].tolist())
    assert np.allclose(np.diff(support.log_weights), np.diff(prior[support.rows]))


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_restorations_agree_with_the_measurement_within_its_noise(store, other, name, noise):
    y = OPERATORS[name](other)
    result = golddiff.restore(golddiff.PCA(store, 0.1), y, OPERATORS[name], noise, steps=4)
    rms = (OPERATORS[name](result.images) - y).square().flatten(1).mean(dim=1).sqrt()
    assert result.images.shape == other.shape
    assert rms.max() <= noise + 2e-3
    if name not in ("grey", "both"):  # the colours of the store's images are random
        assert (result.images - other).square().mean() < 0.7 * other.square().mean()


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_restorations_do_not_depend_on_the_units_of_y(store, other, noise):
    smaller = OPERATORS["smaller"]
    y = smaller(other[:1])
    one = golddiff.restore(store, y, smaller, noise, steps=3).images
    for scale in (1e-3, 255.0):
        run = golddiff.restore(store, scale * y, lambda x, s=scale: s * smaller(x), scale * noise,
                               steps=3)  # fmt: skip
        torch.testing.assert_close(run.images, one, rtol=0, atol=2e-4)


def test_a_complete_picture_without_noise_is_returned(store, other):
    result = golddiff.restore(golddiff.PCA(store, 0.1), other, lambda x: x, 1e-6, steps=3)
    torch.testing.assert_close(result.images, other, rtol=0, atol=1e-4)


@pytest.mark.parametrize("share", [None, "seamless"])
def test_a_measurement_with_huge_noise_has_no_effect(store, other, share):
    pca = golddiff.PCA(store, 0.1, share=share)
    y = OPERATORS["hole"](other[:1])
    restored = golddiff.restore(pca, y, OPERATORS["hole"], 1e6, softness=0, n=2, steps=4, seed=3)
    sampled = golddiff.sample(pca.given(halves(store, (), 2, 3)), 2, 4, seed=3)
    torch.testing.assert_close(restored.images, sampled.images, rtol=0, atol=1e-4)


@given(labels=st.lists(st.integers(0, 3), min_size=1, max_size=40), data=st.data())
def test_halves_keep_half_of_every_class_and_of_a_priors_images(labels, data):
    """The first row keeps all images; others half of each group, rounded up, whatever n is."""
    booleans = st.lists(st.booleans(), min_size=len(labels), max_size=len(labels))
    excluded = np.array(data.draw(booleans))
    store = SimpleNamespace(n=len(labels), labels=torch.tensor(labels))
    priors = [LogWeights(np.where(excluded, -np.inf, 0.0))]
    log_weights = halves(store, priors, 3, 5)
    assert (log_weights[0] == 0).all()
    assert (log_weights[:2] == halves(store, priors, 2, 5)).all()
    for row in (1, 2):
        for label in set(labels):
            for is_excluded in (False, True):
                group = (store.labels.numpy() == label) & (excluded == is_excluded)
                assert (log_weights[row, group] == 0).sum() == -(-group.sum() // 2)


def test_a_restoration_does_not_depend_on_n_and_differs_from_the_others(store, other):
    y = OPERATORS["smaller"](other[:2])
    one = golddiff.restore(store, y, OPERATORS["smaller"], 0.0, steps=3)
    three = golddiff.restore(store, y, OPERATORS["smaller"], 0.0, n=3, steps=3)
    alone = golddiff.restore(store, y[:1], OPERATORS["smaller"], 0.0, n=1, steps=3)
    assert torch.equal(alone.images, one.images[:1])
    torch.testing.assert_close(three.images[:1], one.images[:1], rtol=0, atol=1e-6)
    assert three.images[:3].std(dim=0).mean() > 0.02


@pytest.mark.parametrize("share", [None, "2x2", "seamless"])
def test_attributions_reconstruct_the_restorations(store, other, share):
    y = OPERATORS["smaller"](other[:1])
    pca = golddiff.GoldDiff(golddiff.PCA(store, 0.1, share=share), golddiff.PaperSchedule(20, 20))
    result = golddiff.restore(pca, y, OPERATORS["smaller"], 0, n=2, steps=3, attribution=True)
    for image, sources in zip(result.images, result.attribution, strict=True):
        torch.testing.assert_close(sources.reconstruct().float(), image, rtol=0, atol=1e-4)
        assert len(sources.images) == 20
        assert sources.image_weights.sum() == pytest.approx(1)


def test_a_restored_training_image_counts_as_a_copy_of_itself(store):
    y = OPERATORS["hole"](store.images([7]))
    result = golddiff.restore(golddiff.PCA(store, 0.0), y, OPERATORS["hole"], 0.01, softness=0)
    assert result.novelty.copies.all()
    assert result.novelty.nearest.tolist() == [7]


def test_a_store_may_be_given_by_its_path(store, other):
    y, smaller = OPERATORS["smaller"](other[:1]), OPERATORS["smaller"]
    runs = [golddiff.restore(s, y, smaller, 0.1, steps=2) for s in (store, str(store.path))]
    assert torch.equal(runs[0].images, runs[1].images)


def test_an_operator_may_be_a_module_with_weights(store, other):
    """Regression: weights that require a gradient ended in an error of torch."""
    blur = torch.nn.Conv2d(3, 3, 3, groups=3, bias=False, padding=1)
    y = blur(other[:1])
    made = golddiff.restore(store, y, blur, noise=0.1, steps=2).images
    plain = golddiff.restore(store, y, blur.requires_grad_(False), noise=0.1, steps=2).images
    assert torch.equal(made, plain)
    assert not expected(store, blur.requires_grad_(), y).requires_grad


@pytest.mark.parametrize("name", OPERATORS)
def test_torchs_default_device_has_no_effect(store, other, name):
    y, results = OPERATORS[name](other[:1]), []
    for device in ("cpu", "meta"):
        with torch.device(device):
            images = golddiff.restore(store, y, OPERATORS[name], 0.1, n=2, steps=1).images
            results.append((images, expected(store, OPERATORS[name], y, 0.1)))
    assert all(map(torch.equal, *results))


def test_a_class_is_the_same_as_a_prior_over_its_images(make_store, smooth_images, other):
    store = make_store(smooth_images(40, SHAPE), torch.arange(40) % 2)
    y, pca = OPERATORS["hole"](other[:1]), golddiff.PCA(store, 0.1)
    prior = torch.where(torch.arange(40) % 2 == 1, 0.0, -torch.inf)
    of_class = golddiff.restore(pca, y, OPERATORS["hole"], 0, steps=3, labels=1)
    of_prior = golddiff.restore(pca.given(prior), y, OPERATORS["hole"], 0, steps=3)
    torch.testing.assert_close(of_class.images, of_prior.images, rtol=0, atol=1e-5)


@pytest.mark.parametrize("n", [1, 2])
def test_log_weights_per_query_pair_with_the_measurements(make_store, smooth_images, other, n):
    """Regression: they paired with the restorations of each measurement."""
    store = make_store(smooth_images(40, SHAPE), torch.arange(40) % 2)
    y, pca = OPERATORS["hole"](other[:2]), golddiff.PCA(store, 0.1)
    rows = torch.where(store.labels == torch.tensor([[1], [0]]), 0.0, -torch.inf)
    settings = {"operator": OPERATORS["hole"], "noise": 0.1, "n": n, "steps": 2}
    of_rows = golddiff.restore(pca.given(rows), y, **settings)
    of_classes = golddiff.restore(pca, y, labels=[1, 0], **settings)
    torch.testing.assert_close(of_rows.images, of_classes.images, rtol=0, atol=1e-5)


def test_every_measurement_may_have_a_class_of_its_own(make_store, smooth_images, other):
    store = make_store(smooth_images(40, SHAPE), torch.arange(40) % 2)
    y, settings = OPERATORS["hole"](other[:2]), {"noise": 0.1, "n": 2, "steps": 2}
    both = golddiff.restore(store, y, OPERATORS["hole"], labels=[1, 0], **settings)
    assert both.about["labels"] == "1 1 0 0"
    first = golddiff.restore(store, y[:1], OPERATORS["hole"], labels=1, **settings)
    assert torch.equal(both.images[:2], first.images)
    with pytest.raises(golddiff.ArgumentError, match="labels: got 2, a class with no images"):
        golddiff.restore(store, y, OPERATORS["hole"], labels=[1, 2], **settings)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise": -1.0}, "noise: got -1.0"),
        ({"noise": float("nan")}, "noise: got nan"),
        ({"noise": 0.0, "softness": 0.0}, "noise: got 0, and softness 0"),
        ({"softness": -1.0}, "softness: got -1.0"),
        ({"y": torch.full((1, 3, 4, 4), torch.nan)}, "y: got NaN or infinity, expected"),
        ({"y": np.zeros((1, 3, 4, 4))}, "y: got ndarray, expected a tensor"),
        ({"y": torch.zeros(0, 3, 4, 4)}, "y: got shape (0, 3, 4, 4), expected"),
        ({"operator": lambda x: (x - x.mean(0))[..., ::2, ::2]}, "mixes the images of a batch"),
        ({"y": torch.zeros(1, 3, 5, 5)}, "operator: got output"),
        ({"y": torch.zeros(1, 3, 4, 4, dtype=torch.int32)}, "y: got"),
        ({"operator": 3}, "operator: got int"),
        ({"operator": lambda x: OPERATORS["smaller"](x) ** 2}, "not linear"),
        ({"operator": lambda x: 0 * OPERATORS["smaller"](x)}, "nothing was measured"),
        ({"n": 0}, "n: got 0"),
        ({"steps": 0}, "steps: got 0"),
    ],
)
def test_bad_input_is_refused(store, change, message):
    arguments = {
        "denoiser": golddiff.PCA(store),
        "y": torch.zeros(1, 3, 4, 4),
        "operator": OPERATORS["smaller"],
        "noise": 0.1,
        **change,
    }
    with pytest.raises(ArgumentError, match=re.escape(message)):
        golddiff.restore(**arguments)


def test_subsets_drawn_at_random_become_the_nearest(store):
    released = golddiff.PaperSchedule(variant="released")
    assert parts_of(golddiff.GoldDiff(golddiff.PCA(store), released))[1].variant == "text"


def test_pixels_measured_as_0_are_as_good_as_left_out(store, other):
    known = torch.rand(SHAPE[1:], generator=torch.Generator().manual_seed(0)) < 0.3
    zeros, left_out = (
        golddiff.restore(store, operator(other), operator, 0.05).images
        for operator in (lambda x: x * known, lambda x: x[..., known])
    )
    assert (zeros - left_out).abs().max() < 1e-4


def test_other_denoisers_and_points_are_refused(store, make_store):
    for denoiser in (golddiff.Wiener(store), golddiff.Kamb(store, 3), golddiff.Optimal(store)):
        with pytest.raises(ArgumentError, match=r"denoiser: got .* expected an ImageStore, PCA"):
            golddiff.restore(denoiser, torch.zeros(1, 3, 4, 4), OPERATORS["smaller"], 0.1)
    three = golddiff.PCA(store).given(torch.zeros(3, store.n))
    with pytest.raises(ArgumentError, match="y: got a batch of 1, expected 3, the rows of the log"):
        golddiff.restore(three, torch.zeros(1, 3, 4, 4), OPERATORS["smaller"], 0.1, n=2)
    points = golddiff.PCA(make_store(torch.rand(20, 6)))
    with pytest.raises(ArgumentError, match="points"):
        golddiff.restore(points, torch.zeros(1, 6), lambda x: x, 0.1)


def test_missing_pixels_of_a_larger_picture_do_not_leak_into_known_ones():
    mask = Image.new("L", (160, 160))
    mask.paste(255, (70, 0, 83, 160))
    picture = Image.new("L", (160, 160), 80)
    picture.paste(255, mask=mask)
    y, operator, _ = operators.known_of(picture, (1, 16, 16), missing=mask)
    assert operator.matrix.shape == (16 * 12, 256)
    assert (y - (80 / 127.5 - 1)).abs().max() < 0.05


@pytest.mark.parametrize(("box", "covers"), [((0, 0, 40, 40), "none"), ((40, 0, 260, 200), "all")])
def test_a_hole_outside_the_central_square_is_refused_and_the_square_named(box, covers):
    mask = Image.new("L", (300, 200))
    mask.paste(255, box)
    kept = r"middle 200 x 200 of 300 x 200 pixels \(x 50 to 250, y 0 to 200\)"
    with pytest.raises(ArgumentError, match=f"missing part: covers {covers} of .* {kept}"):
        operators.known_of(Image.new("L", (300, 200)), (1, 16, 16), missing=mask)


@pytest.mark.parametrize("lost", [{}, {"upscale": 2}, {"colours": True}])
def test_what_is_known_is_shown_as_it_was_given_also_where_it_is_blurred(smooth_images, lost):
    pixels = smooth_images(1, (3, 16, 16))[0].permute(1, 2, 0).numpy()
    given = Image.fromarray(pixels).convert("L" if "colours" in lost else "RGB")
    mask = Image.new("L", (16, 16))
    mask.paste(255, (4, 4, 10, 10))
    _, _, known = operators.known_of(given, (3, 16, 16), missing=mask, blur=2, **lost)
    shown = fit_to_shape(given, (3, 16, 16))
    if "upscale" in lost:
        shown = fit_to_shape(given, (3, 8, 8)).repeat_interleave(2, 1).repeat_interleave(2, 2)
    hole = torch.from_numpy(np.asarray(mask) > 0)
    assert torch.equal(known[:, hole], torch.zeros(3, 36))
    far = ~hole if "upscale" not in lost else torch.arange(16) > 11  # resampling spreads a hole
    assert torch.equal(known[:, far], shown[:, far])


def test_transparent_pixels_are_missing_beside_a_hole_and_nearly_opaque_ones_are_not():
    picture = Image.new("RGBA", (16, 16), (90, 90, 90, 250))
    picture.paste((0, 0, 0, 249), (0, 0, 4, 16))  # a soft eraser leaves a rim
    mask = Image.new("L", (16, 16))
    mask.paste(255, (12, 0, 16, 16))
    for missing, columns in ((None, 12), (mask, 8)):
        y, _, _ = operators.known_of(picture, (1, 16, 16), missing=missing)
        assert y.shape == (1, 16 * columns)
    everywhere = Image.new("RGBA", (16, 16), (90, 90, 90, 249))
    with pytest.raises(ArgumentError, match=r"^transparent part: covers all of what is kept"):
        operators.known_of(everywhere, (1, 16, 16), blur=1)
    beside = Image.new("RGBA", (48, 16), "grey")
    beside.paste((0, 0, 0, 0), (0, 0, 8, 16))  # cropped away
    assert len(operators.known_of(beside, (1, 16, 16), blur=1)[0][0]) == 16


def test_for_restoring_chooses_a_threshold_without_measuring(store, make_store, monkeypatch):
    monkeypatch.setattr(dial, "dial", None)
    assert for_restoring(store).mask_threshold == restoring.FEW_PHOTOGRAPHS
    many = make_store(np.zeros((restoring.SMALL_STORE, 3, 2, 2), np.uint8))
    assert for_restoring(many).mask_threshold == restoring.PHOTOGRAPHS
    grey = make_store(np.zeros((3, 1, 16, 16), np.uint8))
    assert for_restoring(grey).mask_threshold == restoring.STROKES
