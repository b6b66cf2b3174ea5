"""AdaptiveSchedule: the error that was asked for, from as few images as that takes."""

import json

import numpy as np
import pytest
import torch

from golddiff import PCA, AdaptiveSchedule, GoldDiff, ImageStore, Kamb, Optimal, PaperSchedule
from golddiff.adaptive import memory
from golddiff.adaptive.plan import Kind
from golddiff.errors import ArgumentError
from golddiff.kernels.mask_tiles import OfChannel
from golddiff.support import TiledSupport

BASES = {
    "optimal": Optimal,
    "pca": lambda store: PCA(store, 0.05),
    "kamb": lambda store: Kamb(store, 3),
}


@pytest.fixture(scope="module")
def images(smooth_images):
    return smooth_images(900, (3, 12, 12))


@pytest.fixture(scope="module")
def store(make_store, images):
    return make_store(images[:800], torch.arange(800) % 4)


def rmse(a, b):
    return float((a - b).square().mean().sqrt())


def noised(images, sigma, seed=3):
    clean = images.float() / 127.5 - 1
    generator = torch.Generator().manual_seed(seed)
    return clean + sigma * torch.randn(clean.shape, generator=generator)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("labels", [None, 2])
def test_tol_0_is_the_full_scan(store, queries, base, labels):
    full = BASES[base](store)
    golden = GoldDiff(full, AdaptiveSchedule(0))
    for sigma in (0.05, 1.0, 30.0):
        x = queries(store, sigma)
        assert torch.equal(golden(x, sigma, labels), full(x, sigma, labels))


@pytest.mark.parametrize("base", BASES)
def test_new_images_keep_to_the_error(store, images, base):
    full = BASES[base](store)
    for tol in (0.1, 0.03):
        golden = GoldDiff(full, AdaptiveSchedule(tol))
        for sigma in (0.05, 0.5, 3.0, 40.0):
            x = noised(images[800:840], sigma)
            assert rmse(golden(x, sigma), full(x, sigma)) < tol


def test_fewer_images_do_where_more_error_is_allowed(store):
    loose, tight = (GoldDiff(Optimal(store), AdaptiveSchedule(tol)).schedule for tol in (0.2, 0.02))
    sizes = [(loose.plan(sigma).k, tight.plan(sigma).k) for sigma in (0.5, 3.0, 40.0)]
    assert all(few <= many for few, many in sizes)
    assert sum(few for few, _ in sizes) < sum(many for _, many in sizes) / 2


def test_as_good_as_another_schedule(store, images):
    full = PCA(store, 0.05)
    paper = PaperSchedule()
    golden = GoldDiff(full, AdaptiveSchedule([paper, PaperSchedule(variant="released")]))
    for sigma in (0.5, 3.0, 40.0):
        x = noised(images[800:840], sigma)
        exact = full(x, sigma)
        assert rmse(golden(x, sigma), exact) < rmse(GoldDiff(full, paper)(x, sigma), exact)


@pytest.mark.parametrize(
    "kind",
    [
        Kind("drawn"),
        Kind("nearest"),
        Kind("drawn", 4),
        Kind("nearest", OfChannel(8), by_blocks=True),
    ],
)
def test_a_query_s_images_do_not_depend_on_its_batch(store, queries, kind):
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05))
    use(golden, kind, 50)
    x = queries(store, 1.0, b=5)
    together = golden(x, 1.0)
    for i in range(5):
        assert torch.equal(golden(x[i : i + 1], 1.0)[0], together[i])
    assert torch.equal(golden(x.flip(0), 1.0).flip(0), together)


@pytest.mark.parametrize(
    "kind",
    [
        Kind("drawn"),
        Kind("nearest"),
        Kind("drawn", 4),
        Kind("nearest", OfChannel(8)),
        Kind("drawn", 8, by_blocks=True),
    ],
)
def test_all_images_are_the_full_scan_in_every_way(store, queries, kind):
    full = PCA(store, 0.05)
    golden = GoldDiff(full, AdaptiveSchedule(0.05))
    use(golden, kind, 799)
    x = queries(store, 0.5)
    # One image in 800 is left out, or counted for 1.001.
    assert rmse(golden(x, 0.5), full(x, 0.5)) < 0.01


def use(golden, kind, k):
    """Have a plan used that was not measured."""
    from golddiff.adaptive.plan import Plan

    golden.schedule.plan = lambda sigma, label=None: Plan(kind, k, 0.0)


def test_with_labels_images_are_of_the_class(store, queries):
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.1))
    x = queries(store, 2.0)
    for support in golden.supports(x, 2.0, labels=3):
        assert (store.labels[torch.from_numpy(support.rows)] == 3).all()


@pytest.mark.parametrize("kind", [Kind("drawn"), Kind("drawn", OfChannel(4)), Kind("nearest", 4)])
def test_attribution_sums_to_the_output(store, queries, kind):
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05))
    use(golden, kind, 40)
    x = queries(store, 0.7, b=2)
    out = golden(x, 0.7)
    for one, attribution in zip(out, golden.attribute(x, 0.7, top=4), strict=True):
        assert (attribution.reconstruct() - one).abs().max() < 1e-4
        assert attribution.weights.min() >= 0
        assert attribution.mass.max() <= 1 + 1e-9


def test_tiles_have_their_own_images(store, queries):
    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(0.05))
    use(golden, Kind("nearest", 4), 25)
    (support,) = golden.supports(queries(store, 0.3, b=1), 0.3)
    assert isinstance(support, TiledSupport)
    assert len(support.tiles) == 9
    assert all(len(tile) == 25 for tile in support.tiles)
    assert len(support.rows) > 25


class TestPlansAreKept:
    def test_and_found_again(self, make_store, smooth_images, monkeypatch):
        store = make_store(smooth_images(200, (3, 8, 8)))
        first = GoldDiff(Optimal(store), AdaptiveSchedule(0.1)).schedule.plan(1.0)
        again = GoldDiff(Optimal(ImageStore.open(store.path)), AdaptiveSchedule(0.1)).schedule
        monkeypatch.setattr(again, "_measured", None)  # not measured again
        assert again.plan(1.0) == first
        store.verify()

    @pytest.mark.parametrize(
        "damage",
        ["", "{", "[]", '{"version": 9}', '{"version": 1, "store": "another", "plans": {}}'],
    )
    def test_a_damaged_file_is_measured_again(self, make_store, smooth_images, damage):
        store = make_store(smooth_images(100, (1, 8, 8)))
        first = GoldDiff(Optimal(store), AdaptiveSchedule(0.1)).schedule.plan(1.0)
        (store.path / memory.NAME).write_text(damage)
        assert GoldDiff(Optimal(store), AdaptiveSchedule(0.1)).schedule.plan(1.0) == first

    @pytest.mark.parametrize(
        "entry",
        [
            None,
            ["nearest", 4],
            ["other", None, 5, 0.1],
            ["drawn", 3, 5, 0.1],
            ["full", None, 10**9, 0],
            ["drawn", None, "many", 0],
        ],
    )
    def test_an_unsound_plan_is_none(self, make_store, smooth_images, entry):
        store = make_store(smooth_images(100, (1, 8, 8)))
        body = {"version": 1, "store": memory.identity(store), "plans": {"key": entry}}
        (store.path / memory.NAME).write_text(json.dumps(body))
        assert memory.recall(store, "key") is None


class TestSmallAndOddSets:
    @pytest.mark.parametrize("n", [1, 2, 3, 40])
    @pytest.mark.parametrize("base", BASES)
    def test_a_few_images(self, make_store, smooth_images, base, n):
        full = BASES[base](make_store(smooth_images(n, (3, 12, 12))))
        x = noised(smooth_images(4, (3, 12, 12), seed=9), 0.5)
        golden = GoldDiff(full, AdaptiveSchedule(0.05))
        assert torch.equal(golden(x, 0.5), full(x, 0.5))

    @pytest.mark.parametrize("base", ["optimal", "pca"])
    def test_equal_images(self, make_store, smooth_images, base):
        store = make_store(smooth_images(1, (3, 12, 12)).repeat(300, 1, 1, 1))
        golden = GoldDiff(BASES[base](store), AdaptiveSchedule(0.05))
        x = noised(smooth_images(2, (3, 12, 12), seed=9), 1.0)
        assert rmse(golden(x, 1.0), store.images([0, 0])) < 1e-4

    def test_points(self, make_store):
        generator = torch.Generator().manual_seed(0)
        store = make_store(torch.randn(500, 2, generator=generator))
        full = PCA(store, 0.1)
        x = store.images(range(20)) + 0.3 * torch.randn(20, 2, generator=generator)
        golden = GoldDiff(full, AdaptiveSchedule(0.05))
        assert rmse(golden(x, 0.3), full(x, 0.3)) < 0.05


@pytest.mark.parametrize("tol", [-1, float("nan"), float("inf"), "small", True, None, [], [0.1]])
def test_a_bad_tol_is_named(tol):
    with pytest.raises(ArgumentError, match="tol: got"):
        AdaptiveSchedule(tol)


def test_coordinates_are_orthonormal_projections(store):
    from golddiff.adaptive.coordinates import pooled, principal

    values = store.values(np.arange(20))
    for coordinates in (pooled(store), principal(store)):
        gram = coordinates.basis @ coordinates.basis.T
        assert np.abs(gram - np.eye(len(gram))).max() < 1e-4
        expected = (values - coordinates.mean) @ coordinates.basis.T
        assert np.abs(coordinates.z[:, :20].T - expected).max() < 1e-4
        assert np.abs(coordinates.of(values - coordinates.mean) - expected).max() < 1e-4


@pytest.mark.parametrize("tol", [0.1, PaperSchedule(variant="released")])
def test_a_description_builds_the_same_denoiser(store, queries, tol):
    from golddiff.describe import build, describe

    golden = GoldDiff(PCA(store, 0.05), AdaptiveSchedule(tol))
    again = build(json.loads(json.dumps(describe(golden))), store)
    x = queries(store, 2.0)
    assert torch.equal(again(x, 2.0), golden(x, 2.0))
