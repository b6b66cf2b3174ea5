"""Bytes between the shards and the driver follow the formula of docs/reference/cluster.md."""

import pytest

import golddiff
from golddiff.cluster.pool import Traffic
from golddiff.noise import ddim_sigmas

B, SHARDS, STEPS = 4, 2, 4
ENVELOPE = 700  # bytes of a call and its answer with a rule support


def full_scan_bytes(d, locations):
    """Bytes per step of the queries sent and the partial posteriors received."""
    return SHARDS * B * (4 * d + 8 * (2 * locations + d))


def selection_bytes(store, schedule):
    """Bytes of all steps: rows and distances received, and rows sent."""
    moved = 0
    for sigma in ddim_sigmas(STEPS):
        m, k = schedule.budgets(sigma, store.n)
        keep, pool = schedule.screened(sigma, store.n), store.n if schedule.variant == "text" else m
        if keep < pool:
            moved += B * (12 * min(SHARDS * keep, pool) + 4 * keep)
        if k < min(keep, pool):
            moved += B * (12 * min(SHARDS * k, keep) + 4 * k)
    return moved


@pytest.fixture(params=["split_patches", "split_digits"])
def store(request):
    """300 colour images of 768 values, or 1,797 grey ones of 64, in two shards."""
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("method", ["optimal", "pca", "kamb"])
@pytest.mark.parametrize("variant", [None, "text", "released"])
def test_bytes_a_step_follow_the_formula(store, method, variant, monkeypatch):
    # Without outputs that are computed again in float64.
    monkeypatch.setattr("golddiff.estimators.pca_float64.TOL", float("inf"))
    make, locations = {
        "optimal": (golddiff.Optimal, 1),
        "pca": (golddiff.PCA, store.d),
        "kamb": (lambda s: golddiff.Kamb(s, 3), store.d // store.shape[0]),
    }[method]
    denoiser, golden = make(store), 0
    if variant is not None:
        schedule = golddiff.PaperSchedule(variant=variant)
        denoiser, golden = golddiff.GoldDiff(denoiser, schedule), selection_bytes(store, schedule)
    golddiff.sample(denoiser, 1, STEPS)  # masks are sent once
    store.pool.traffic = Traffic()
    golddiff.sample(denoiser, B, STEPS)
    traffic = store.pool.traffic
    # A golden step also sends the queries with each selection.
    selections = traffic.calls - STEPS * SHARDS
    expected = STEPS * full_scan_bytes(store.d, locations) + golden + selections * B * 4 * store.d
    moved = traffic.sent + traffic.received
    assert moved == pytest.approx(expected + ENVELOPE * traffic.calls, rel=0.1)
    assert traffic.sent_once == 0


def test_a_full_scan_takes_one_call_per_shard_and_step(split_patches):
    denoiser = golddiff.Optimal(split_patches)
    denoiser(split_patches.images([0]), 1.0)
    split_patches.pool.traffic = Traffic()
    for sigma in ddim_sigmas(STEPS):
        denoiser(split_patches.images([0]), sigma)
    assert split_patches.pool.traffic.calls == STEPS * (SHARDS + 1)  # one reads the image
