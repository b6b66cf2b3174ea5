"""What a step moves between the shards and the driver: the formula of docs/reference/cluster.md."""

import pytest

import golddiff
from golddiff.cluster.pool import Traffic
from golddiff.noise import ddim_sigmas

B, SHARDS, STEPS = 4, 2, 4
ENVELOPE = 700  # of a call and its answer, with a described support


def partials(d, locations):
    """Queries that go to each shard, and partial posteriors that come back."""
    return SHARDS * B * (4 * d + 8 * (2 * locations + d))


def chosen(store, schedule):
    """Images' rows and distances that come back, and rows that go out, of all steps."""
    moved = 0
    for sigma in ddim_sigmas(STEPS):
        m, k = schedule.budgets(sigma, store.n)
        keep, pool = schedule.screened(sigma, store.n), store.n if schedule.variant == "text" else m
        if keep < pool:
            moved += B * (12 * min(SHARDS * keep, pool) + 4 * keep)
        if k < min(keep, pool):
            moved += B * (12 * min(SHARDS * k, keep) + 4 * k)
    return moved


@pytest.fixture(params=["coloured", "halves"])
def store(request):
    """300 colour images, or 1,500 of the same size, in two shards."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("method", ["optimal", "pca", "kamb"])
@pytest.mark.parametrize("variant", [None, "text", "released"])
def test_bytes_a_step_follow_the_formula(store, method, variant):
    make, locations = {
        "optimal": (golddiff.Optimal, 1),
        "pca": (golddiff.PCA, store.d),
        "kamb": (lambda s: golddiff.Kamb(s, 3), store.d // 3),
    }[method]
    denoiser, golden = make(store), 0
    if variant is not None:
        schedule = golddiff.PaperSchedule(variant=variant)
        denoiser, golden = golddiff.GoldDiff(denoiser, schedule), chosen(store, schedule)
    golddiff.sample(denoiser, 1, STEPS)  # masks are given once
    store.pool.traffic = Traffic()
    golddiff.sample(denoiser, B, STEPS)
    traffic = store.pool.traffic
    # A golden step sends the queries with each choice, too.
    asked = traffic.calls - STEPS * SHARDS
    expected = STEPS * partials(store.d, locations) + golden + asked * B * 4 * store.d
    moved = traffic.sent + traffic.received
    assert moved == pytest.approx(expected + ENVELOPE * traffic.calls, rel=0.1)
    assert traffic.sent_once == 0


def test_a_full_scan_does_not_move_more_for_more_images(coloured, halves):
    moved = []
    for store in (coloured, halves):
        denoiser = golddiff.PCA(store)
        golddiff.sample(denoiser, 1, STEPS)
        store.pool.traffic = Traffic()
        golddiff.sample(denoiser, B, STEPS)
        moved.append(store.pool.traffic.sent + store.pool.traffic.received)
    assert moved[1] == pytest.approx(moved[0], rel=0.01)


def test_a_full_scan_is_one_call_a_shard_and_step(coloured):
    denoiser = golddiff.Optimal(coloured)
    denoiser(coloured.images([0]), 1.0)
    coloured.pool.traffic = Traffic()
    for sigma in ddim_sigmas(STEPS):
        denoiser(coloured.images([0]), sigma)
    assert coloured.pool.traffic.calls == STEPS * (SHARDS + 1)  # and one to fetch the image
