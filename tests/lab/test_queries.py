from functools import partial

import pytest
import torch

import golddiff
from golddiff.estimators.registry import create
from golddiff.noise import ddim_sigmas
from golddiff.system.errors import ArgumentError
from golddiff_lab.queries import held_out, mixed, noised, trajectory


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(30))


def test_trajectory_queries_at_a_runs_levels_are_its_states(store):
    wiener = golddiff.Wiener(store)
    sigmas = ddim_sigmas(10)
    states = trajectory(wiener, sigmas, 2, seed=3)
    run = golddiff.sample(wiener, 2, 10, seed=3)
    for x, sigma, x0 in zip(states, sigmas, run.trajectory, strict=True):
        assert wiener(x, sigma).clamp(-1, 1).allclose(x0, atol=1e-6)


def test_a_query_between_two_levels_is_interpolated_linearly(store):
    wiener, sigmas = golddiff.Wiener(store), ddim_sigmas(10)
    above, below, between = trajectory(wiener, [sigmas[4], sigmas[5], 2.5], 2, seed=0)
    share = (2.5 - sigmas[5]) / (sigmas[4] - sigmas[5])
    assert between.allclose(below + share * (above - below), atol=1e-4)


def test_queries_at_levels_outside_the_run_are_finite(store):
    for x in trajectory(golddiff.Wiener(store), [500.0, 0.001], 1, seed=0):
        assert x.isfinite().all()


def test_noised_queries_share_image_and_noise_across_levels(store):
    low, high = noised(store, [1.0, 3.0], 4, seed=0)
    noise = (high - low) / 2
    clean = low - noise
    off = (clean[:, None] - store.images()).abs().flatten(2).amax(2)
    assert off.min(dim=1).values.max() < 1e-5
    assert 0.9 < noise.std() < 1.1


@pytest.mark.parametrize("source", ["trajectory", "noised"])
def test_the_seed_determines_the_queries(source, store):
    run_states = partial(trajectory, create("golddiff-pca", store))
    queries = partial(noised, store) if source == "noised" else run_states
    a, b, c = (queries([2.0, 0.5], 2, seed) for seed in (1, 1, 2))
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert not torch.equal(a[0], c[0])


def test_mixed_queries_alternate_states_of_a_run_and_held_out_images(store):
    levels = mixed(store, create("golddiff-optimal", store), [5.0, 0.01], 4, seed=0)
    assert [x.shape for x in levels] == [(4, 3, 8, 8)] * 2
    clean = held_out(store, 2, seed=0)
    noise = (levels[0][1::2] - clean) / 5.0
    assert torch.allclose(levels[1][1::2], clean + 0.01 * noise, atol=1e-4)
    (alone,) = mixed(store, create("golddiff-optimal", store), [5.0], 1, seed=0)
    assert alone.shape == (1, 3, 8, 8)  # a state of the run


def test_held_out_images_are_not_in_the_store(store):
    distances = torch.cdist(held_out(store, 20, 0).flatten(1), store.images().flatten(1))
    assert distances.min() > 0.05


def test_points_cannot_be_held_out(make_store):
    with pytest.raises(ArgumentError, match="expected uint8 images"):
        held_out(make_store(torch.randn(20, 2)), 2, 0)
