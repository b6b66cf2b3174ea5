"""Attribution returns the weights with which training images make the output."""

import numpy as np
import pytest
import torch

from golddiff import (
    PCA,
    SCFDM,
    GoldDiff,
    Kamb,
    NearestImage,
    Optimal,
    PaperSchedule,
    PSPCSquare,
    Wiener,
    pixel_sources,
    sample,
)
from golddiff.denoiser import Estimator
from golddiff.estimators import pspc
from golddiff.kernels.contributions import Ranking, Weights
from golddiff.kernels.kamb_cpu import Axis
from golddiff.support import Support
from golddiff.system.errors import ArgumentError
from reliability.reference import compared, framed_by, pca_mask
from tests.conftest import float64_images

SIGMAS = [60.0, 3.0, 0.5, 0.05]

ESTIMATORS = {
    "optimal": Optimal,
    "pca ss": PCA,
    "pca wss": lambda s: PCA(s, weighting="wss", batch_size=50),
    "kamb zeros": lambda s: Kamb(s, 3),
    "kamb circular": lambda s: Kamb(s, 3, "circular"),
    "kamb none": lambda s: Kamb(s, 5, "none"),
    "scfdm": lambda s: SCFDM(s, 0.3, copies=4),
    "pspc": lambda s: PSPCSquare(s, 3),
    "pca 2x2": lambda s: PCA(s, 0.05, share="2x2"),
    "seamless": lambda s: PCA(s, 0.05, share="seamless"),
}
METHODS = (
    ESTIMATORS
    | {"nearest": NearestImage}
    | {
        f"golddiff {name} {variant}": lambda s, m=make, v=variant: GoldDiff(
            m(s), PaperSchedule(0.1, 0.3, 0.3, 0.6, variant=v)
        )
        for name, make in ESTIMATORS.items()
        for variant in ("text", "released")
    }
)


@pytest.fixture(scope="module")
def colour(make_store, smooth_images):
    return make_store(smooth_images(120, (3, 8, 8)), torch.arange(120) % 3)


@pytest.fixture(scope="module")
def grey(make_store, smooth_images):
    return make_store(smooth_images(120, (1, 9, 6)), torch.arange(120) % 3)


@pytest.fixture(scope="module")
def points(make_store):
    generator = torch.Generator().manual_seed(0)
    return make_store(torch.randn(90, 5, generator=generator), torch.arange(90) % 2)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize(("kind", "labels"), [("colour", None), ("grey", [0, 1, 2])])
def test_weighted_sources_add_up_to_the_output(request, queries, name, kind, labels):
    store = request.getfixturevalue(kind)
    denoiser = METHODS[name](store)
    for sigma in SIGMAS:
        x = queries(store, sigma, 3)
        output = denoiser(x, sigma, labels)
        # Far from a class, logits reach thousands, which float32 rounds by up to 5e-4.
        bound = 5e-4 if sigma < 0.1 else 1e-4
        attributions = denoiser.attribute(x, sigma, labels, top=5)
        for attribution, image in zip(attributions, output, strict=True):
            assert (attribution.reconstruct() - image).abs().max() < bound
            assert attribution.image_weights.sum() == pytest.approx(1)
            assert len(attribution.image_weights) == len(attribution.images)
            assert (attribution.mass <= 1 + 1e-9).all()
            assert (np.diff(attribution.weights, axis=1) <= 1e-12).all()


@pytest.mark.parametrize("share", ["pixel", "seamless"])
def test_sources_and_output_differ_by_no_more_than_the_rounding_of_equal_weights(colour, share):
    images = colour.images()
    x = (images[:20] + images[20:40]) / 2  # as near to both, at logits of -1e6
    denoiser = PCA(colour, share=share)
    attributions = denoiser.attribute(x, 0.003)
    differences = [
        float((attribution.reconstruct() - image).abs().max())
        for attribution, image in zip(attributions, denoiser(x, 0.003), strict=True)
    ]
    assert max(differences) > 1e-4
    assert all(d <= 1e-6 + a.rounding for d, a in zip(differences, attributions, strict=True))


def test_the_rounding_of_kamb_counts_equal_patches_of_one_image(make_store):
    """A patch of the query is as near to a patch as to its mirror image, in the same image."""
    noise = torch.rand(1, 3, 15, 8, generator=torch.Generator().manual_seed(0))
    pixels = torch.cat([noise, noise.flip(3)], dim=3).mul(255).round().byte()
    store = make_store(torch.cat([pixels, torch.zeros_like(pixels)]))
    (attribution,) = Kamb(store, 3, "circular").attribute(torch.zeros(1, 3, 15, 16), 0.01)
    assert attribution.rounding > 1e-3


def test_images_without_weight_are_sources_with_weight_0(make_store, smooth_images):
    store = make_store(smooth_images(200))
    x = store.images([5])
    for denoiser in (PSPCSquare(store, 8), SCFDM(store, 0.0)):
        (attribution,) = denoiser.attribute(x, 0.002, top=5)
        assert attribution.sources[0].tolist() == [5, 0, 1, 2, 3]
        assert attribution.weights[0].tolist() == [1, 0, 0, 0, 0]


def test_weighted_sources_of_points_add_up_to_the_output(points, queries):
    for make in (Optimal, PCA):
        for denoiser in (make(points), GoldDiff(make(points))):
            x = queries(points, 0.3, 3)
            attributions = denoiser.attribute(x, 0.3)
            for attribution, output in zip(attributions, denoiser(x, 0.3), strict=True):
                assert (attribution.reconstruct() - output).abs().max() < 1e-4
                assert attribution.patchwork().shape == (5,)


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_weights_of_optimal_are_the_softmax_of_its_logits(colour, queries, sigma):
    x, images = queries(colour, sigma, 1), float64_images(colour)
    (attribution,) = Optimal(colour).attribute(x, sigma, top=120)
    logits = -((x.double().reshape(-1).numpy() - images) ** 2).sum(1) / (2 * sigma**2)
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    assert attribution.image_weights == pytest.approx(weights, abs=1e-6)
    assert attribution.weights[0] == pytest.approx(np.sort(weights)[::-1], abs=1e-6)
    assert (attribution.locations, attribution.sources.shape) == ("image", (1, 120))
    entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum()
    assert attribution.effective == pytest.approx(np.exp(entropy), rel=1e-4)


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_weights_of_pca_are_the_softmax_of_masked_logits(colour, queries, sigma):
    x, images = queries(colour, sigma, 1), float64_images(colour)
    flat = x.double().reshape(-1).numpy()
    mask = pca_mask(sigma, images, 0.1)
    (attribution,) = PCA(colour, 0.1).attribute(x, sigma, top=7)
    logits = -((flat - images) ** 2) @ mask / (2 * sigma**2)
    weights = np.exp(logits - logits.max(0))
    weights /= weights.sum(0)
    assert attribution.image_weights == pytest.approx(weights.mean(1), abs=1e-6)
    assert attribution.weights == pytest.approx(np.sort(weights, axis=0)[::-1][:7].T, abs=1e-6)
    listed = weights[attribution.sources, np.arange(192)[:, None]]
    assert listed == pytest.approx(attribution.weights, abs=1e-6)
    # A pixel's main source has the most weight over its three channels.
    by_pixel = weights.reshape(120, 3, 64).mean(1)
    assert attribution.main_weights.ravel() == pytest.approx(by_pixel.max(0), abs=1e-6)
    main = attribution.patchwork().ravel()
    assert by_pixel[main, np.arange(64)] == pytest.approx(by_pixel.max(0), abs=1e-6)


@pytest.mark.parametrize("boundary", ["zeros", "circular", "none"])
def test_sources_of_kamb_are_images_and_positions(colour, queries, boundary):
    sigma, size, (row, column) = 0.7, 3, (4, 2)
    x, images = queries(colour, sigma, 1), float64_images(colour).reshape(-1, 3, 8, 8)
    (attribution,) = Kamb(colour, size, boundary).attribute(x, sigma, top=6)
    rows, columns = (compared(u, 8, size, boundary) for u in (row, column))
    query = framed_by(1, x[0].double().numpy(), boundary)[:, row : row + 3, column : column + 3]
    logits = np.array(
        [
            [
                -((query - frame[:, r : r + 3, c : c + 3]) ** 2).sum() / (2 * sigma**2)
                for r in rows
                for c in columns
            ]
            for frame in (framed_by(1, image, boundary) for image in images)
        ]
    )
    positions = [r * 8 + c for r in rows for c in columns]
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    location = row * 8 + column
    top = np.sort(weights.ravel())[::-1][:6]
    assert attribution.weights[location] == pytest.approx(top, abs=1e-6)
    listed = [
        weights[i, positions.index(p)]
        for i, p in zip(attribution.sources[location], attribution.positions[location], strict=True)
    ]
    assert listed == pytest.approx(attribution.weights[location], abs=1e-6)
    by_image = weights.sum(1)
    effective = np.exp(-(by_image * np.log(np.maximum(by_image, 1e-300))).sum())
    assert attribution.effective[location] == pytest.approx(effective, rel=1e-5)


def test_the_effective_number_is_n_for_equal_weights_and_1_for_one_image(make_store):
    store = make_store(torch.full((37, 1, 4, 4), 90, dtype=torch.uint8))
    x = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for make in (Optimal, PCA, lambda s: Kamb(s, 3)):
        (uniform,) = make(store).attribute(x, 0.5)
        assert uniform.effective == pytest.approx(37)
        assert uniform.image_weights == pytest.approx(1 / 37)
        golden = GoldDiff(make(store), PaperSchedule(1, 1, 1, 1))
        (attribution,) = golden.attribute(x, 0.5)
        assert attribution.effective == pytest.approx(1)
        assert attribution.image_weights == pytest.approx(1)


def test_weights_far_from_all_images_sum_to_1(make_store):
    """Logits are near 1e16, where log(n) is below float64 resolution."""
    store = make_store(torch.full((20, 1, 4, 4), 128, dtype=torch.uint8))
    (attribution,) = Optimal(store).attribute(torch.full((1, 1, 4, 4), 100.0), 2e-6)
    assert attribution.image_weights == pytest.approx(1 / 20)
    assert attribution.mass == pytest.approx(16 / 20)


@pytest.mark.parametrize("name", sorted({*ESTIMATORS} - {"pca wss"}))  # wss depends on batches
def test_an_importance_weight_of_2_equals_the_image_twice(colour, queries, name):
    rows, estimator = np.array([3, 8, 40]), ESTIMATORS[name](colour)
    weighted = Support(rows, np.log([1.0, 2.0, 1.0]))
    x = queries(colour, 3.0, 1).reshape(-1).numpy()
    once = list(Weights(estimator, weighted, x, 3.0, 3))
    twice = list(Weights(estimator, Support(np.array([3, 8, 8, 40])), x, 3.0, 3))
    w, v = (np.concatenate([p[1] for p in parts], axis=1) for parts in (once, twice))
    assert w[:, 1] == pytest.approx(v[:, 1] + v[:, 2], rel=1e-5)


def test_parts_whose_weights_underflow_to_0_do_not_change_the_sum(colour, monkeypatch):
    monkeypatch.setattr(pspc, "IMAGES_PER_CONTRIBUTION", 40)
    sources = pixel_sources(PSPCSquare(colour, 3), colour.images([7]), 0.01, 3, 5, top=2)
    assert sources.images[sources.weights.argmax()] == 7
    assert sources.weights.sum() == pytest.approx(1)
    assert sources.effective == pytest.approx(1)


@pytest.mark.parametrize("name", METHODS)
def test_pixel_sources_equal_the_attribution_of_the_whole_image(colour, queries, name):
    denoiser, sigma, (y, x_col) = METHODS[name](colour), 0.7, (3, 5)
    x = queries(colour, sigma, 1)
    (whole,) = denoiser.attribute(x, sigma, 1, top=4)
    pixel = pixel_sources(denoiser, x[0], sigma, y, x_col, top=4, labels=1)
    position = y * 8 + x_col
    assert pixel.weights.sum() == pytest.approx(1)
    assert pixel.images.tolist() == whole.images.tolist()
    heaviest = pixel.images[pixel.weights.argmax()]
    assert pixel.weights.max() == pytest.approx(whole.main_weights[y, x_col])
    assert heaviest == whole.patchwork()[y, x_col]
    channel = pixel_sources(denoiser, x, sigma, y, x_col, channel=2, top=4, labels=1)
    if "seamless" not in name:  # such a value also depends on the sources of its neighbours
        value = whole.reconstruct()[:, y, x_col].numpy()
        assert pixel.value == pytest.approx(value, abs=1e-9)
        assert channel.value == pytest.approx(value[2:], abs=1e-9)
    location = {"image": 0, "pixel": position, "value": 128 + position}[whole.locations]
    assert channel.source_weights == pytest.approx(whole.weights[location], abs=1e-9)
    assert channel.sources.tolist() == whole.sources[location].tolist()
    assert channel.effective == pytest.approx(whole.effective[location])
    assert (pixel.positions == position).all() or whole.positions is not None


def test_top_error_is_the_rmse_of_the_top_sources_alone(colour, queries):
    x = queries(colour, 0.5, 1)
    for make in ESTIMATORS.values():
        denoiser = make(colour)
        (top2,) = denoiser.attribute(x, 0.5, top=2)
        (top20,) = denoiser.attribute(x, 0.5, top=20)
        assert (top2.mass <= top20.mass + 1e-12).all()
        assert top20.top_error() < 0.05
        rmse = (top20.from_top() - denoiser(x, 0.5)[0]).square().mean().sqrt()
        assert top20.top_error() == pytest.approx(float(rmse), abs=1e-5)
    (full,) = PCA(colour).attribute(x, 0.5, top=500)
    assert full.sources.shape == (192, 120)
    assert (full.from_top() - full.reconstruct()).abs().max() < 1e-6


def test_top_images_have_the_largest_weights_over_the_whole_image(colour, queries):
    (attribution,) = PCA(colour).attribute(queries(colour, 2.0, 1), 2.0)
    rows, weights = attribution.top_images(5)
    assert weights == pytest.approx(np.sort(attribution.image_weights)[::-1][:5])
    assert attribution.image_weights[rows] == pytest.approx(weights)


def test_recomputing_terms_instead_of_storing_them_gives_the_same(colour, queries, monkeypatch):
    x = queries(colour, 0.7, 1)
    for make in ESTIMATORS.values():
        (stored,) = make(colour).attribute(x, 0.7)
        with monkeypatch.context() as patch:
            patch.setattr("golddiff.kernels.contributions.CACHE_SHARE", 0)
            patch.setattr("golddiff.attribution.IMAGES_AT_ONCE", 7)
            (recomputed,) = make(colour).attribute(x, 0.7)
            assert torch.equal(stored.from_top(), recomputed.from_top())
        assert np.array_equal(stored.total, recomputed.total)
        assert np.array_equal(stored.sources, recomputed.sources)


def test_a_ranking_keeps_the_highest_scores_for_any_order_of_parts():
    scores = np.random.default_rng(0).normal(size=(3, 50))
    ranking = Ranking.empty(3, 4)
    for start in (30, 0, 10, 20, 40):
        rows = np.arange(start, start + 10)
        ranking = ranking.offered(scores[:, rows], rows)
    assert np.array_equal(ranking.descending().rows, np.argsort(-scores, axis=1)[:, :4])


def test_of_equally_heavy_images_the_first_are_sources(make_store):
    """A sort by score alone keeps others, and other ones on other processors."""
    store = make_store(torch.full((700, 1, 4, 4), 90, dtype=torch.uint8))
    for denoiser in (Optimal(store), PCA(store), PSPCSquare(store, 3)):
        (attribution,) = denoiser.attribute(torch.zeros(1, 1, 4, 4), 0.5, top=5)
        assert (attribution.sources == np.arange(5)).all()
        assert (attribution.patchwork() == 0).all()
        pixel = pixel_sources(denoiser, torch.zeros(1, 4, 4), 0.5, 1, 2, top=5)
        assert pixel.sources.tolist() == list(range(5))


def test_axis_at_a_position_compares_the_same_positions_as_the_reference():
    for boundary in ("zeros", "circular", "none"):
        axis = Axis.of(9, 5, boundary)
        for u in range(9):
            runs = [(int(s), axis.at(u).image[s + axis.reach]) for _, _, s in axis.at(u).runs]
            assert sorted(v for _, v in runs) == sorted(compared(u, 9, 5, boundary))


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_sample_with_attribution_returns_sources_and_golden_subset_sizes(colour, sampler):
    denoiser = GoldDiff(PCA(colour), PaperSchedule(0.1, 0.3, variant="released"))
    plain = sample(denoiser, 5, sampler=sampler, labels=[0, 1, 2, 0, 1])
    run = sample(
        denoiser, 5, sampler=sampler, labels=[0, 1, 2, 0, 1], batch_size=2, attribution=True
    )
    assert torch.equal(run.images, plain.images)
    assert plain.attribution is None
    for attribution, image in zip(run.attribution, run.images, strict=True):
        assert (attribution.reconstruct() - image).abs().max() < 1e-4
    assert [set(colour.labels[a.images].tolist()) for a in run.attribution] == [
        {0}, {1}, {2}, {0}, {1},
    ]  # fmt: skip
    calls = {"ddim": 10, "heun": 19}[sampler]
    assert len(run.subsets.sigmas) == calls
    for i, sigma in enumerate(run.subsets.sigmas):
        m, k = denoiser.schedule.budgets(sigma, 40)
        assert run.subsets.screened[i].tolist() == [m] * 5
        assert run.subsets.kept[i].tolist() == [k] * 5
    assert run.subsets.effective.shape == (calls, 5)
    assert (run.subsets.effective >= 1).all()
    assert (run.subsets.effective <= run.subsets.kept + 1e-9).all()


def test_invalid_arguments_are_named(colour, points):
    x = torch.zeros(1, 3, 8, 8)
    pca = PCA(colour)

    class Custom(Optimal):
        contributions = Estimator.contributions

    for call, message in [
        (lambda: Wiener(colour).attribute(x, 1.0), "attribution: not supported by Wiener"),
        (lambda: sample(Wiener(colour), 1, attribution=True), "not supported by Wiener"),
        (lambda: pixel_sources(Wiener(colour), x, 1.0, 0, 0), "not supported by Wiener"),
        (lambda: Custom(colour).attribute(x, 1.0), "denoiser: Custom does not"),
        (lambda: pca.attribute(x, 1.0, top=0), "top: got 0, expected an integer of 1 or more"),
        (lambda: pca.attribute(x, -1.0), "sigma: got -1.0"),
        (lambda: pixel_sources(pca, x, 1.0, 8, 0), "y: got 8, expected 0 to 7"),
        (lambda: pixel_sources(pca, x, 1.0, 0, -1), "x_col: got -1, expected 0 to 7"),
        (lambda: pixel_sources(pca, x, 1.0, 0, 0, channel=3), "channel: got 3, expected 0 to 2"),
        (lambda: pixel_sources(pca, x.repeat(2, 1, 1, 1), 1.0, 0, 0), "x: got 2 images"),
        (lambda: pixel_sources(Optimal(points), torch.zeros(1, 5), 1.0, 0, 0), "has no pixels"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()


def test_the_sources_of_a_batch_take_one_search_of_the_training_images(colour, queries):
    """A search reads the whole set, which may be on a disk."""
    searches = []

    class Counted(PaperSchedule):
        def supports(self, store, x, *more):
            searches.append(len(x))
            return super().supports(store, x, *more)

    denoiser = GoldDiff(PCA(colour), Counted())
    x = queries(colour, 1.0, 6)
    denoiser.attribute(x, 1.0)
    denoiser.supports(x, 1.0)
    sample(denoiser, 6, 1, attribution=True)
    assert searches == [6] * 5
