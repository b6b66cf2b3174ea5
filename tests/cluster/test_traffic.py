"""What a step moves between the shards and the driver does not grow with the images."""

import pytest

import golddiff
from golddiff.adaptive.plan import Kind, Plan
from golddiff.adaptive.schedule import lattice
from golddiff.cluster import ShardedStore
from golddiff.cluster.traffic import step_bytes
from golddiff.noise import ddim_sigmas
from golddiff.store import ImageStore

B, SHARDS = 4, 2
TOL, K, TILES = 0.05, 60, 16


def adaptive(kind):
    """A denoiser by PCA whose every step has supports of a kind, K images each."""

    def over(store):
        denoiser = golddiff.GoldDiff(golddiff.PCA(store), golddiff.AdaptiveSchedule(TOL))
        for sigma in ddim_sigmas(10):
            denoiser.schedule._plans[lattice(sigma), None] = Plan(kind, K, TOL)
        return denoiser

    return over


METHODS = {
    "optimal": golddiff.Optimal,
    "pca": golddiff.PCA,
    "kamb": lambda s: golddiff.Kamb(s, 3),
    "golddiff text": lambda s: golddiff.GoldDiff(golddiff.Optimal(s)),
    "golddiff released": lambda s: golddiff.GoldDiff(
        golddiff.PCA(s), golddiff.PaperSchedule(variant="released")
    ),
    "adaptive nearest": adaptive(Kind("nearest")),
    "adaptive drawn": adaptive(Kind("drawn")),
    "adaptive tiles nearest": adaptive(Kind("nearest", 4)),
    "adaptive tiles drawn": adaptive(Kind("drawn", 4)),
}


@pytest.fixture(scope="module")
def sizes(cluster, cut, tmp_path_factory):
    """A store of 300 colour images and one of 1,500, in two shards each."""
    folder = tmp_path_factory.mktemp("sizes")
    stores = [
        ShardedStore.open(
            cut(ImageStore.build("patches", folder / str(n), limit=n, size=16), SHARDS)
        )
        for n in (300, 1500)
    ]
    yield stores
    for store in stores:
        store.close()


@pytest.mark.parametrize("method", METHODS)
def test_bytes_a_step_follow_the_formula_and_not_n(sizes, method):
    measured = []
    for store in sizes:
        denoiser = METHODS[method](store)
        locations = getattr(denoiser, "base", denoiser).locations()
        golddiff.sample(denoiser, 1, 10)  # places and factors are given once
        store.start_counting()
        golddiff.sample(denoiser, B, 10)
        traffic = store.traffic
        moved = traffic.sent + traffic.received
        chooses = isinstance(denoiser, golddiff.GoldDiff)
        problems = chooses * B * (TILES if "tiles" in method else 1)
        expected = 10 * step_bytes(SHARDS, B, store.d, locations, 0, 0, 0)
        expected += step_bytes(0, 0, 0, 0, traffic.histograms, traffic.calls, problems)
        assert moved == pytest.approx(expected, rel=0.2)
        assert traffic.given == 0
        measured.append(moved / 10)
    assert measured[1] == pytest.approx(measured[0], rel=0.2)


def test_a_full_scan_is_one_call_a_shard_and_step(sizes):
    store = sizes[0]
    denoiser = golddiff.Optimal(store)
    denoiser(store.images([0]), 1.0)
    store.start_counting()
    for sigma in ddim_sigmas(10):
        denoiser(store.images([0]), sigma)
    assert store.traffic.calls == 10 * (SHARDS + 1)  # and one to fetch the image
