"""The weights that attribution tells are the ones that the output is made of."""

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
from golddiff_lab.reference import pca_mask
from golddiff_lab.reference_kamb import compared, framed_by
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
def test_weights_summed_again_are_the_output(request, queries, name, kind, labels):
    store = request.getfixturevalue(kind)
    denoiser = METHODS[name](store)
    for sigma in SIGMAS:
        x = queries(store, sigma, 3)
        output = denoiser(x, sigma, labels)
        # A class that x is far from has logits of some thousands, which float32 rounds by 5e-4.
        bound = 5e-4 if sigma < 0.1 else 1e-4
        for one, image in zip(denoiser.attribute(x, sigma, labels, top=5), output, strict=True):
            assert (one.reconstruct() - image).abs().max() < bound
            assert one.image_weights.sum() == pytest.approx(1)
            assert len(one.image_weights) == len(one.images)
            assert (one.mass <= 1 + 1e-9).all()
            assert (np.diff(one.weights, axis=1) <= 1e-12).all()


def test_points_have_sources_too(points, queries):
    for make in (Optimal, PCA):
        for denoiser in (make(points), GoldDiff(make(points))):
            x = queries(points, 0.3, 3)
            for one, output in zip(denoiser.attribute(x, 0.3), denoiser(x, 0.3), strict=True):
                assert (one.reconstruct() - output).abs().max() < 1e-4
                assert one.patchwork().shape == (5,)


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_optimal_s_weights_are_the_softmax_of_its_logits(colour, queries, sigma):
    x, images = queries(colour, sigma, 1), float64_images(colour)
    (one,) = Optimal(colour).attribute(x, sigma, top=120)
    logits = -((x.double().reshape(-1).numpy() - images) ** 2).sum(1) / (2 * sigma**2)
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    assert one.image_weights == pytest.approx(weights, abs=1e-6)
    assert one.weights[0] == pytest.approx(np.sort(weights)[::-1], abs=1e-6)
    assert (one.locations, one.sources.shape) == ("image", (1, 120))
    entropy = -(weights * np.log(np.maximum(weights, 1e-300))).sum()
    assert one.effective == pytest.approx(np.exp(entropy), rel=1e-4)


@pytest.mark.kernels
@pytest.mark.parametrize("sigma", SIGMAS)
def test_pca_s_weights_are_the_softmax_over_its_masks(colour, queries, sigma):
    x, images = queries(colour, sigma, 1), float64_images(colour)
    flat = x.double().reshape(-1).numpy()
    mask = pca_mask(sigma, images, 0.1)
    (one,) = PCA(colour, 0.1).attribute(x, sigma, top=7)
    logits = -((flat - images) ** 2) @ mask / (2 * sigma**2)
    weights = np.exp(logits - logits.max(0))
    weights /= weights.sum(0)
    assert one.image_weights == pytest.approx(weights.mean(1), abs=1e-6)
    assert one.weights == pytest.approx(np.sort(weights, axis=0)[::-1][:7].T, abs=1e-6)
    listed = weights[one.sources, np.arange(192)[:, None]]
    assert listed == pytest.approx(one.weights, abs=1e-6)
    # A pixel's main source has the most weight over its three channels.
    by_pixel = weights.reshape(120, 3, 64).mean(1)
    assert one.main_weights.ravel() == pytest.approx(by_pixel.max(0), abs=1e-6)
    main = one.patchwork().ravel()
    assert by_pixel[main, np.arange(64)] == pytest.approx(by_pixel.max(0), abs=1e-6)
    tile = by_pixel.reshape(120, 8, 8)[:, 4:8, 0:4].mean((1, 2))
    assert one.tile_weights[1, 0] == pytest.approx(np.sort(tile)[::-1][:7], abs=1e-6)
    assert tile[one.tile_sources[1, 0]] == pytest.approx(one.tile_weights[1, 0], abs=1e-6)


@pytest.mark.parametrize("boundary", ["zeros", "circular", "none"])
def test_kamb_s_sources_are_images_and_positions(colour, queries, boundary):
    sigma, size, (row, column) = 0.7, 3, (4, 2)
    x, images = queries(colour, sigma, 1), float64_images(colour).reshape(-1, 3, 8, 8)
    (one,) = Kamb(colour, size, boundary).attribute(x, sigma, top=6)
    query = framed_by(1, x[0].double().numpy(), boundary)[:, row : row + 3, column : column + 3]
    logits = np.array(
        [
            [
                -((query - frame[:, r : r + 3, c : c + 3]) ** 2).sum() / (2 * sigma**2)
                for r in compared(row, 8, size, boundary)
                for c in compared(column, 8, size, boundary)
            ]
            for frame in (framed_by(1, image, boundary) for image in images)
        ]
    )
    places = [
        r * 8 + c
        for r in compared(row, 8, size, boundary)
        for c in compared(column, 8, size, boundary)
    ]
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    here = row * 8 + column
    assert one.weights[here] == pytest.approx(np.sort(weights.ravel())[::-1][:6], abs=1e-6)
    listed = [
        weights[i, places.index(p)]
        for i, p in zip(one.sources[here], one.positions[here], strict=True)
    ]
    assert listed == pytest.approx(one.weights[here], abs=1e-6)
    by_image = weights.sum(1)
    effective = np.exp(-(by_image * np.log(np.maximum(by_image, 1e-300))).sum())
    assert one.effective[here] == pytest.approx(effective, rel=1e-5)


def test_the_effective_number_of_equal_weights_is_n_and_of_one_image_is_1(make_store):
    store = make_store(torch.full((37, 1, 4, 4), 90, dtype=torch.uint8))
    x = torch.randn(1, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    for make in (Optimal, PCA, lambda s: Kamb(s, 3)):
        (uniform,) = make(store).attribute(x, 0.5)
        assert uniform.effective == pytest.approx(37)
        assert uniform.image_weights == pytest.approx(1 / 37)
        single = GoldDiff(make(store), PaperSchedule(1, 1, 1, 1))
        (one,) = single.attribute(x, 0.5)
        assert one.effective == pytest.approx(1)
        assert one.image_weights == pytest.approx(1)


def test_weights_far_from_the_images_sum_to_1_too(make_store):
    """Logits of 1e16, beside which the log of their number is less than the last digit."""
    store = make_store(torch.full((20, 1, 4, 4), 128, dtype=torch.uint8))
    (found,) = Optimal(store).attribute(torch.full((1, 1, 4, 4), 100.0), 2e-6)
    assert found.image_weights == pytest.approx(1 / 20)
    assert found.mass == pytest.approx(16 / 20)


@pytest.mark.parametrize("name", sorted({*ESTIMATORS} - {"pca wss"}))  # of batches, as they are
def test_importance_weights_count_as_so_many_images(colour, queries, name):
    """Twice the weight is the image twice."""
    rows, estimator = np.array([3, 8, 40]), ESTIMATORS[name](colour)
    double = Support(rows, np.log([1.0, 2.0, 1.0]))
    x = queries(colour, 3.0, 1).reshape(-1).numpy()
    once = list(Weights(estimator, double, x, 3.0, 3))
    plain = list(Weights(estimator, Support(np.array([3, 8, 8, 40])), x, 3.0, 3))
    w, v = (np.concatenate([part[1] for part in run], axis=1) for run in (once, plain))
    assert w[:, 1] == pytest.approx(v[:, 1] + v[:, 2], rel=1e-5)


def test_a_part_of_the_images_without_weight_counts_for_nothing(colour, monkeypatch):
    """Sums go over a part of the images at a time; near one of them the others' weights are 0."""
    monkeypatch.setattr(pspc, "IMAGES_PER_CONTRIBUTION", 40)
    found = pixel_sources(PSPCSquare(colour, 3), colour.images([7]), 0.01, 3, 5, top=2)
    assert found.images[found.weights.argmax()] == 7
    assert found.weights.sum() == pytest.approx(1)
    assert found.effective == pytest.approx(1)


def test_ragged_tiles_average_what_they_hold(grey, queries):
    (one,) = PCA(grey).attribute(queries(grey, 0.5, 1), 0.5, top=120, tile=4)
    assert one.tile_sources.shape == (3, 2, 120)
    assert one.tile_weights.sum(-1) == pytest.approx(1)
    areas = np.outer([4, 4, 1], [4, 2])
    mean = np.zeros(120)
    for area, rows, weights in zip(
        areas.ravel(), one.tile_sources.reshape(6, -1), one.tile_weights.reshape(6, -1), strict=True
    ):
        mean[rows] += area * weights / 54
    assert mean == pytest.approx(one.image_weights)


@pytest.mark.parametrize("name", METHODS)
def test_one_pixel_s_sources_are_those_of_the_whole(colour, queries, name):
    denoiser, sigma, (y, x_col) = METHODS[name](colour), 0.7, (3, 5)
    x = queries(colour, sigma, 1)
    (whole,) = denoiser.attribute(x, sigma, 1, top=4)
    pixel = pixel_sources(denoiser, x[0], sigma, y, x_col, top=4, labels=1)
    here = y * 8 + x_col
    assert pixel.value == pytest.approx(whole.reconstruct()[:, y, x_col].numpy(), abs=1e-9)
    assert pixel.weights.sum() == pytest.approx(1)
    assert pixel.images.tolist() == whole.images.tolist()
    heaviest = pixel.images[pixel.weights.argmax()]
    assert pixel.weights.max() == pytest.approx(whole.main_weights[y, x_col])
    assert heaviest == whole.patchwork()[y, x_col]
    channel = pixel_sources(denoiser, x, sigma, y, x_col, channel=2, top=4, labels=1)
    assert channel.value == pytest.approx(whole.reconstruct()[2:, y, x_col].numpy(), abs=1e-9)
    location = {"image": 0, "pixel": here, "value": 128 + here}[whole.locations]
    assert channel.source_weights == pytest.approx(whole.weights[location], abs=1e-9)
    assert channel.sources.tolist() == whole.sources[location].tolist()
    assert channel.effective == pytest.approx(whole.effective[location])
    assert (pixel.positions == here).all() or whole.positions is not None


def test_the_top_alone_explain_what_their_mass_says(colour, queries):
    x = queries(colour, 0.5, 1)
    for make in ESTIMATORS.values():
        denoiser = make(colour)
        (few,) = denoiser.attribute(x, 0.5, top=2)
        (more,) = denoiser.attribute(x, 0.5, top=20)
        assert (few.mass <= more.mass + 1e-12).all()
        assert more.top_error() < 0.05
        off = (more.from_top() - denoiser(x, 0.5)[0]).square().mean().sqrt()
        assert more.top_error() == pytest.approx(float(off), abs=1e-5)
    (all_,) = PCA(colour).attribute(x, 0.5, top=500)
    assert all_.sources.shape == (192, 120)
    assert (all_.from_top() - all_.reconstruct()).abs().max() < 1e-6


def test_top_images_are_the_heaviest_of_the_picture(colour, queries):
    (one,) = PCA(colour).attribute(queries(colour, 2.0, 1), 2.0)
    rows, weights = one.top_images(5)
    assert weights == pytest.approx(np.sort(one.image_weights)[::-1][:5])
    assert one.image_weights[rows] == pytest.approx(weights)


def test_terms_that_do_not_fit_in_memory_are_made_twice(colour, queries, monkeypatch):
    x = queries(colour, 0.7, 1)
    for make in ESTIMATORS.values():
        (kept,) = make(colour).attribute(x, 0.7)
        with monkeypatch.context() as patch:
            patch.setattr("golddiff.kernels.contributions.CACHE_SHARE", 0)
            (again,) = make(colour).attribute(x, 0.7)
        assert np.array_equal(kept.total, again.total)
        assert np.array_equal(kept.sources, again.sources)


def test_a_ranking_keeps_the_highest_whatever_the_order_of_parts():
    scores = np.random.default_rng(0).normal(size=(3, 50))
    ranking = Ranking.empty(3, 4)
    for start in (30, 0, 10, 20, 40):
        rows = np.arange(start, start + 10)
        ranking = ranking.offered(scores[:, rows], rows)
    assert np.array_equal(ranking.descending().rows, np.argsort(-scores, axis=1)[:, :4])


def test_one_position_s_axis_compares_what_the_whole_axis_does_there():
    for boundary in ("zeros", "circular", "none"):
        axis = Axis.of(9, 5, boundary)
        for u in range(9):
            runs = [(int(s), axis.at(u).image[s + axis.reach]) for _, _, s in axis.at(u).runs]
            assert sorted(v for _, v in runs) == sorted(compared(u, 9, 5, boundary))


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_samples_tell_where_they_come_from(colour, sampler):
    denoiser = GoldDiff(PCA(colour), PaperSchedule(0.1, 0.3, variant="released"))
    plain = sample(denoiser, 5, sampler=sampler, labels=[0, 1, 2, 0, 1])
    run = sample(
        denoiser, 5, sampler=sampler, labels=[0, 1, 2, 0, 1], batch_size=2, attribution=True
    )
    assert torch.equal(run.images, plain.images)
    assert plain.attribution is None
    for one, image in zip(run.attribution, run.images, strict=True):
        assert (one.reconstruct() - image).abs().max() < 1e-4
    assert [set(colour.labels[one.images].tolist()) for one in run.attribution] == [
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


def test_bad_input_is_named(colour, points):
    x = torch.zeros(1, 3, 8, 8)
    pca = PCA(colour)

    class Own(Optimal):
        contributions = Estimator.contributions

    for call, message in [
        (lambda: Wiener(colour).attribute(x, 1.0), "denoiser: Wiener weighs no training images"),
        (lambda: sample(Wiener(colour), 1, attribution=True), "Wiener weighs no training images"),
        (lambda: pixel_sources(Wiener(colour), x, 1.0, 0, 0), "Wiener weighs no training images"),
        (lambda: Own(colour).attribute(x, 1.0), "denoiser: Own does not"),
        (lambda: pca.attribute(x, 1.0, top=0), "top: got 0, expected an integer of 1 or more"),
        (lambda: pca.attribute(x, 1.0, tile=2.5), "tile: got 2.5"),
        (lambda: pca.attribute(x, -1.0), "sigma: got -1.0"),
        (lambda: pixel_sources(pca, x, 1.0, 8, 0), "y: got 8, expected 0 to 7"),
        (lambda: pixel_sources(pca, x, 1.0, 0, -1), "x_col: got -1, expected 0 to 7"),
        (lambda: pixel_sources(pca, x, 1.0, 0, 0, channel=3), "channel: got 3, expected 0 to 2"),
        (lambda: pixel_sources(pca, x.repeat(2, 1, 1, 1), 1.0, 0, 0), "x: got 2 images"),
        (lambda: pixel_sources(Optimal(points), torch.zeros(1, 5), 1.0, 0, 0), "has no pixels"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            call()
