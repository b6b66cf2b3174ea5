"""``compare`` and ``evaluate``, against direct calls of the sampler and the metrics."""

import json
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


def test_the_scores_compare_two_runs_from_the_same_noise(store, oracle):
    denoiser = golddiff.Wiener(store)
    result = evaluate(denoiser, oracle, n=5, steps=3, seed=4, batch=2)
    pair = [golddiff.sample(d, 5, 3, seed=4).images for d in (denoiser, oracle)]
    np.testing.assert_allclose(result.mse_per_image, metrics.mse_per_image(*pair), rtol=1e-5)
    np.testing.assert_allclose(result.r2_per_image, metrics.r2_per_image(*pair), rtol=1e-5)
    assert result.mse.mean == pytest.approx(float(metrics.mse(*pair)), rel=1e-5)
    assert result.r2.low <= result.r2.mean <= result.r2.high


def test_points_are_compared_as_they_are(make_store):
    points = 4 + torch.randn(90, 2, generator=torch.Generator().manual_seed(0))
    store = make_store(points)
    pair = golddiff.Wiener(store), golddiff.Optimal(store)
    result = evaluate(*pair, n=5, steps=3)
    outputs = [golddiff.sample(d, 5, 3).images.double() for d in pair]
    expected = (outputs[0] - outputs[1]).square().mean(dim=1)
    np.testing.assert_allclose(result.mse_per_image, expected, rtol=1e-5)
    assert result.mse.mean > 1e-4
    assert result.single.mse.max() > 1e-4
    about = "<Evaluation: 5 images, 3 steps of ddim, seed 0; r2 "
    assert repr(result).startswith(about)
    assert f"MSE {result.mse.mean:.3g} (" in repr(result)


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_a_denoiser_against_itself_has_no_error_at_any_step(store, sampler):
    wiener = golddiff.Wiener(store)
    result = evaluate(wiener, wiener, n=3, steps=4, sampler=sampler, batch=2)
    assert result.mse.mean == 0
    for curve in (result.own, result.single):
        np.testing.assert_allclose(curve.mse, 0, atol=1e-12)
        np.testing.assert_allclose(curve.r2, 1)
    assert result.sigmas == golddiff.sampling.noise_levels(4, sampler)


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_the_states_of_a_run_are_the_inputs_of_its_steps(store, oracle, sampler):
    settings = RunSettings(5, 3, sampler, batch=2)
    result = run(oracle, store, settings)
    assert result.states.shape == result.predictions.shape == (3, 5, *store.shape)
    for x, sigma, x0 in zip(result.states, result.sigmas, result.predictions, strict=True):
        torch.testing.assert_close(oracle(x, sigma).clamp(-1, 1), x0.clamp(-1, 1))
    torch.testing.assert_close(result.predictions[-1], result.images)
    torch.testing.assert_close(result.images, golddiff.sample(oracle, 5, 3, sampler).images)


def test_single_step_errors_are_measured_at_the_oracles_states(store, oracle):
    denoiser = golddiff.Optimal(store)
    settings = RunSettings(5, 3, batch=2, labels=(0, 1, 2, 2, 1))
    reference = run(lambda x, sigma, labels: oracle(x, sigma), store, settings)
    result = compare(denoiser, reference, settings)
    for i, (x, sigma) in enumerate(zip(reference.states, reference.sigmas, strict=True)):
        direct = metrics.mse(denoiser(x, sigma, settings.labels), oracle(x, sigma))
        assert result.single.mse[i] == pytest.approx(float(direct), rel=1e-5)
    assert compare(denoiser, reference, settings, single_step=False).single is None


def test_r2_of_a_constant_reference_image_is_undefined_and_counted(store):
    def constant(x, sigma, labels=None):
        return torch.zeros_like(x)

    result = evaluate(golddiff.Wiener(store), constant, n=2, steps=2)
    figures = result.figures()
    assert figures["r2_undefined"] == 2
    assert figures["r2"]["mean"] is None
    assert figures["per_image"]["r2"] == [None, None]
    assert figures["mse"]["count"] == 2


def test_curves_of_r2_leave_out_constant_reference_images(store, oracle):
    def half(x, sigma, labels=None):
        return oracle(x, sigma) * torch.tensor([0.0, 1.0]).reshape(2, 1, 1, 1)

    wiener = golddiff.Wiener(store)
    both = evaluate(wiener, half, n=2, steps=2)
    last = metrics.r2_per_image(both.images, run(half, store, both.settings).images)
    assert both.own.r2[-1] == pytest.approx(float(last[1]))


def test_seconds_are_those_of_an_image_and_step(store, oracle, monkeypatch):
    ticks = iter(range(10**6))
    for clock in ("perf_counter", "process_time"):
        monkeypatch.setattr(f"golddiff.evaluation.runs.time.{clock}", lambda: next(ticks))
    result = evaluate(golddiff.Wiener(store), oracle, n=6, steps=4, batch=3)
    # Two of the ticks of both clocks lie within a call; 8 calls take 24 images and steps.
    assert result.seconds == result.processor_seconds == 2 * 8 / 24


def test_different_samplers_share_the_noise_and_have_no_curves(store, oracle):
    result = evaluate(golddiff.Wiener(store), oracle, n=2, steps=3, oracle_sampler="heun")
    expected = golddiff.sample(oracle, 2, 3, "heun").images
    images = golddiff.sample(golddiff.Wiener(store), 2, 3).images
    assert result.mse.mean == pytest.approx(float(metrics.mse(images, expected)), rel=1e-5)
    assert result.own is None
    assert result.figures()["oracle_sampler"] == "heun"


def test_labels_are_passed_to_both_denoisers(store):
    received = []

    def oracle(x, sigma, labels=None):
        received.append(labels)
        return x * 0 + 0.1

    result = evaluate(golddiff.Optimal(store), oracle, n=3, steps=2, labels=[0, 1, 2], batch=2)
    assert result.settings.labels == (0, 1, 2)
    assert [torch.as_tensor(labels).tolist() for labels in received] == [[0, 1]] * 2 + [[2]] * 2
    expected = golddiff.sample(golddiff.Optimal(store), 3, 2, labels=[0, 1, 2]).images
    torch.testing.assert_close(result.images, expected)


@pytest.mark.parametrize("labels", [np.int64(2), torch.tensor(2), np.array([2, 2])])
def test_labels_may_be_numpy_numbers_or_tensors(store, oracle, labels):
    def network(x, sigma, labels):
        return oracle(x, sigma)

    result = evaluate(golddiff.Optimal(store), network, n=2, steps=1, labels=labels)
    assert json.loads(json.dumps(result.figures()))["labels"] == [2, 2]


def test_conditions_that_cannot_be_evaluated_are_refused_before_the_oracle_runs(store):
    def oracle(x, sigma, labels):
        raise AssertionError

    with pytest.raises(ArgumentError, match="labels: got 7, a class with no images"):
        evaluate(golddiff.Wiener(store), oracle, n=2, labels=[0, 7])
    each_its_own = golddiff.Optimal(store).given(torch.zeros(2, store.n))
    with pytest.raises(ArgumentError, match="denoiser: has 2 conditions, expected one for all"):
        evaluate(each_its_own, oracle, n=2)


def test_a_long_run_keeps_at_most_twenty_steps(store, oracle):
    long_run = run(oracle, store, RunSettings(1, 50))
    assert len(long_run.settings.kept) == len(long_run.states) == 20
    assert (long_run.settings.kept[0], long_run.settings.kept[-1]) == (0, 49)


def test_bad_oracles_labels_and_counts_are_refused(store):
    denoiser = golddiff.Wiener(store)
    oracle = Shrinking(0.0, (3, 32, 32))
    with pytest.raises(ArgumentError, match=r"oracle: is for images of shape \(3, 32, 32\)"):
        evaluate(denoiser, oracle, n=1)
    with pytest.raises(ArgumentError, match="oracle: got str"):
        evaluate(denoiser, "network", n=1)
    with pytest.raises(ArgumentError, match=r"<lambda>: returned Tensor \(1, 1, 3, 6\), expected"):
        evaluate(denoiser, lambda x, sigma: x[:, :, :3], n=1, steps=1)
    with pytest.raises(ArgumentError, match=r"returned ndarray \(1, 1, 6, 6\), expected Tensor"):
        evaluate(denoiser, lambda x, sigma: x.numpy(), n=1, steps=1)
    with pytest.raises(ArgumentError, match=r"labels: got shape \(2,\), expected one .* \(3,\)"):
        evaluate(denoiser, lambda x, sigma: x, n=3, labels=[0, 1])
    with pytest.raises(ArgumentError, match="oracle_sampler: got 'euler', expected one of"):
        evaluate(denoiser, lambda x, sigma: x, n=1, oracle_sampler="euler")
    with pytest.raises(ArgumentError, match=r"^sampler: got \['ddim'\], expected one of"):
        evaluate(denoiser, lambda x, sigma: x, n=1, sampler=["ddim"])
    with pytest.raises(ArgumentError, match="n: got 0"):
        evaluate(denoiser, lambda x, sigma: x, n=0)


def test_anything_but_a_denoiser_is_refused_in_its_place(store, oracle):
    for wrong in (store, "pca", golddiff.Wiener):
        with pytest.raises(ArgumentError, match=f"denoiser: got {type(wrong).__name__}, expected"):
            evaluate(wrong, oracle, n=1)


def test_a_run_takes_little_more_memory_than_it_keeps():
    """Regression: it took three times as much."""
    space = SimpleNamespace(shape=(1, 64, 64), is_pixels=True)

    def halved(x, sigma):
        return x / 2

    halved.store = space
    run(halved, space, RunSettings(n=2))
    with peak_memory() as peak:
        kept = run(halved, space, RunSettings(n=300))
    assert torch.equal(kept.images, kept.predictions[-1])
    if peak.kind == "resident":  # the system resets the peak
        assert peak.bytes - peak.before < 8 * kept.predictions.numel() + 30e6  # 98 MB + 30 MB


def test_the_memory_peak_includes_blocks_that_were_freed():
    with peak_memory() as peak:
        block = np.ones(40_000_000)  # 320 MB
        del block
    with peak_memory() as idle_peak:
        pass
    assert peak.kind in ("resident", "process", "allocator")
    if peak.kind == "resident":
        assert peak.bytes - idle_peak.bytes > 200e6
        assert peak.bytes >= peak.before + 300e6


@pytest.mark.parametrize(("peak_bytes", "measured"), [(60, False), (61, True)])
def test_a_network_on_a_gpu_is_no_memory_of_a_method_on_the_processor(
    monkeypatch, peak_bytes, measured
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 60)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: peak_bytes)
    with peak_memory() as peak:
        pass
    assert (peak.kind == "allocator") == measured


def test_classes_of_other_names_are_not_compared(make_store, smooth_images):
    store = make_store(smooth_images(20, (1, 6, 6)), torch.arange(20) % 2)
    store.class_names = ["cat", "dog"]
    net = golddiff.Oracle(
        lambda x, t, labels: x, shape=store.shape, num_classes=2, class_names=["dog", "cat"]
    )
    with pytest.raises(
        ArgumentError, match="class 1 of the oracle is 'cat', and of the store 'dog'"
    ):
        evaluate(golddiff.Optimal(store), net, n=2, steps=2, labels=1)
    net.class_names = ["bird", "dog"]
    assert evaluate(golddiff.Optimal(store), net, n=2, steps=2, labels=1).settings.labels == (1, 1)
