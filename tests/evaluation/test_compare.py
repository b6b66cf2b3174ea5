"""The comparison with an oracle, against the metrics and the sampler taken one by one."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import golddiff
from golddiff import metrics
from golddiff.evaluation.compare import compare, evaluate
from golddiff.evaluation.peak_memory import peak_memory
from golddiff.evaluation.runs import RunSettings, run
from golddiff.system.errors import ArgumentError
from tests.oracles_for_tests import Shrinking


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(40, (1, 6, 6)), torch.arange(40) % 3)


@pytest.fixture
def oracle(store):
    return Shrinking(store.images().mean(0), store.shape)


def test_the_scores_are_those_of_two_runs_from_the_same_noise(store, oracle):
    denoiser = golddiff.Wiener(store)
    made = evaluate(denoiser, oracle, n=5, steps=3, seed=4, batch=2)
    ours, theirs = (golddiff.sample(d, 5, 3, seed=4).images for d in (denoiser, oracle))
    np.testing.assert_allclose(made.mse_per_image, metrics.mse_per_image(ours, theirs), rtol=1e-5)
    np.testing.assert_allclose(made.r2_per_image, metrics.r2_per_image(ours, theirs), rtol=1e-5)
    assert made.mse.mean == pytest.approx(float(metrics.mse(ours, theirs)), rel=1e-5)
    assert made.r2.low <= made.r2.mean <= made.r2.high


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_an_oracle_against_itself_is_perfect_at_every_step(store, sampler):
    wiener = golddiff.Wiener(store)
    made = evaluate(wiener, wiener, n=3, steps=4, sampler=sampler, batch=2)
    assert made.mse.mean == 0
    for curve in (made.own, made.single):
        np.testing.assert_allclose(curve.mse, 0, atol=1e-12)
        np.testing.assert_allclose(curve.r2, 1)
    assert made.sigmas == golddiff.sampling.noise_levels(4, sampler)


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_the_states_are_what_each_step_sees(store, oracle, sampler):
    settings = RunSettings(5, 3, sampler, batch=2)
    made = run(oracle, store, settings)
    assert made.states.shape == made.predictions.shape == (3, 5, *store.shape)
    for x, sigma, x0 in zip(made.states, made.sigmas, made.predictions, strict=True):
        torch.testing.assert_close(oracle(x, sigma).clamp(-1, 1), x0.clamp(-1, 1))
    torch.testing.assert_close(made.predictions[-1], made.images)
    torch.testing.assert_close(made.images, golddiff.sample(oracle, 5, 3, sampler).images)


def test_the_single_step_error_is_taken_at_the_oracles_states(store, oracle):
    denoiser = golddiff.Optimal(store)
    settings = RunSettings(4, 3, batch=3)
    reference = run(oracle, store, settings)
    made = compare(denoiser, reference, settings)
    for i, (x, sigma) in enumerate(zip(reference.states, reference.sigmas, strict=True)):
        direct = metrics.mse(denoiser(x, sigma), oracle(x, sigma))
        assert made.single.mse[i] == pytest.approx(float(direct), rel=1e-5)
    assert compare(denoiser, reference, settings, single_step=False).single is None


def test_a_constant_reference_image_has_no_r2_and_is_counted(store):
    def constant(x, sigma, labels=None):
        return torch.zeros_like(x)

    made = evaluate(golddiff.Wiener(store), constant, n=2, steps=2)
    figures = made.figures()
    assert figures["r2_undefined"] == 2
    assert figures["r2"]["mean"] is None
    assert figures["per_image"]["r2"] == [None, None]
    assert figures["mse"]["count"] == 2


def test_two_samplers_are_compared_from_the_same_noise_without_curves(store, oracle):
    made = evaluate(golddiff.Wiener(store), oracle, n=2, steps=3, oracle_sampler="heun")
    direct = golddiff.sample(oracle, 2, 3, "heun").images
    ours = golddiff.sample(golddiff.Wiener(store), 2, 3).images
    assert made.mse.mean == pytest.approx(float(metrics.mse(ours, direct)), rel=1e-5)
    assert made.own is None
    assert made.figures()["oracle_sampler"] == "heun"


def test_labels_reach_both_sides(store):
    seen = []

    def oracle(x, sigma, labels=None):
        seen.append(labels)
        return x * 0 + 0.1

    made = evaluate(golddiff.Optimal(store), oracle, n=3, steps=2, labels=[0, 1, 2], batch=2)
    assert made.settings.labels == (0, 1, 2)
    assert [torch.as_tensor(labels).tolist() for labels in seen] == [[0, 1]] * 2 + [[2]] * 2
    direct = golddiff.sample(golddiff.Optimal(store), 3, 2, labels=[0, 1, 2]).images
    torch.testing.assert_close(made.images, direct)


def test_of_a_long_run_at_most_twenty_steps_are_kept(store, oracle):
    made = run(oracle, store, RunSettings(1, 50))
    assert len(made.steps) == len(made.states) == 20
    assert (made.steps[0], made.steps[-1]) == (0, 49)


def test_oracles_of_another_shape_are_told_apart(store):
    denoiser = golddiff.Wiener(store)
    other = SimpleNamespace(shape=(3, 32, 32), is_pixels=True)
    oracle = Shrinking(0.0, (3, 32, 32))
    assert oracle.store == other
    with pytest.raises(ArgumentError, match=r"oracle: is for images of shape \(3, 32, 32\)"):
        evaluate(denoiser, oracle, n=1)
    with pytest.raises(ArgumentError, match="oracle: got str"):
        evaluate(denoiser, "network", n=1)
    with pytest.raises(ArgumentError, match="oracle: returned shape"):
        evaluate(denoiser, lambda x, sigma: x[:, :, :3], n=1, steps=1)
    with pytest.raises(ArgumentError, match="labels: got 2 of them for 3 images"):
        evaluate(denoiser, lambda x, sigma: x, n=3, labels=[0, 1])
    with pytest.raises(ArgumentError, match="n: got 0"):
        evaluate(denoiser, lambda x, sigma: x, n=0)


def test_the_memory_peak_sees_what_was_freed_again():
    with peak_memory() as peak:
        block = np.ones(40_000_000)  # 320 MB
        del block
    with peak_memory() as after:
        pass
    assert peak.kind in ("resident", "process", "unknown", "allocator")
    if peak.kind == "resident":
        assert peak.bytes - after.bytes > 200e6
        assert peak.bytes >= peak.before + 300e6
