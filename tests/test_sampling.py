"""Samplers follow their equations, and a seed determines the images."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import golddiff
from golddiff import PCA, GoldDiff, Optimal, PaperSchedule, sample
from golddiff.evaluation.peak_memory import peak_memory
from golddiff.noise import (
    sigma_of_alpha,
)
from golddiff.samplers import initial_noise, level_of_strength, noise_levels, noised, steps
from golddiff.system.errors import ArgumentError
from tests.ddim_for_tests import ddim_scheduler
from tests.recorded import Recorded


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(300, (1, 8, 8)), torch.arange(300) % 3)


METHODS = {
    "optimal": Optimal,
    "pca": PCA,
    "golddiff-optimal": lambda s: GoldDiff(Optimal(s)),
    "golddiff-pca released": lambda s: GoldDiff(PCA(s), PaperSchedule(variant="released")),
}


@pytest.mark.kernels
def test_ddim_follows_its_equation_in_sigma_coordinates(store):
    """x' = x0 + sigma' (x - x0) / sigma; the first x is sqrt(1 + sigma^2) times unit noise."""
    denoiser = Recorded(Optimal(store))
    run = sample(denoiser, 3, seed=5)
    expected_x = run.x_init.double() * (1 + run.sigmas[0] ** 2) ** 0.5
    for i, (x, sigma, _, x0) in enumerate(denoiser.calls):
        assert sigma == run.sigmas[i]
        assert (run.trajectory[i] - x0).abs().max() < 1e-6
        # About ten float32 operations on numbers as large as x, each rounded by 2^-24 = 6e-8.
        assert (x - expected_x).abs().max() < 1e-6 * x.abs().max()
        if i + 1 < len(run.sigmas):
            expected_x = x0.double() + run.sigmas[i + 1] * (x.double() - x0) / sigma
    assert torch.equal(run.images, run.trajectory[-1])


def test_heun_follows_the_exact_flow_of_a_gaussian(make_store):
    """For N(0, s^2) data the flow is x * sqrt((s^2 + sigma'^2) / (s^2 + sigma^2))."""
    from golddiff import Wiener

    data = 0.5 * torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    denoiser = Wiener(make_store(data))
    run = sample(denoiser, 200, steps=60, sampler="heun")
    s = data.std()
    exact = 80 * run.x_init * s / (s**2 + 80**2) ** 0.5
    assert (run.images - exact).abs().max() < 0.02


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_result_of_heun_is_its_last_prediction(store, steps):
    """An Euler step to sigma 0 would give it with rounding errors as large as those of x."""
    denoiser = Recorded(Optimal(store))
    run = sample(denoiser, 4, steps, "heun")
    assert torch.equal(run.images, denoiser.calls[-1][-1])


@pytest.mark.parametrize("dtype", [np.int64, np.uint8])
def test_integers_may_be_numpy_scalars(store, dtype, tmp_path):
    """Sums of NumPy integers may wrap, so they are converted."""
    two, many = dtype(2), dtype(200)
    run = sample(Optimal(store), many, steps=two, seed=two, batch_size=many)
    run.save(tmp_path / "run.npz")
    assert torch.equal(run.images, sample(Optimal(store), 200, steps=2, seed=2).images)
    for invalid in (np.bool_(True), dtype(0), np.float64(2)):
        with pytest.raises(golddiff.ArgumentError, match=r"n: got .* expected an integer of 1"):
            sample(Optimal(store), invalid)


def test_heun_calls_the_denoiser_19_times_in_10_steps(store):
    denoiser = Recorded(Optimal(store))
    sample(denoiser, 1, sampler="heun")
    assert len(denoiser.calls) == 19


@pytest.mark.kernels
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_images_of_a_seed_do_not_depend_on_the_batch_size(store, name, sampler):
    denoiser = METHODS[name](store)
    batches_of_1, batches_of_5, full_batch = (
        sample(denoiser, 16, 4, sampler, seed=3, batch_size=b).images for b in (1, 5, 16)
    )
    assert torch.equal(batches_of_1, full_batch)
    assert torch.equal(batches_of_5, full_batch)
    assert (sample(denoiser, 16, 4, sampler, seed=4).images - full_batch).abs().max() > 0.1


def test_a_run_does_not_depend_on_the_default_dtype_and_device_of_torch(store):
    def samples():
        generator = torch.Generator("cpu").manual_seed(3)
        run = sample(Optimal(store), 2, steps=2, seed=3)
        return [run.images, sample(Optimal(store), 2, steps=2, generator=generator).images]

    expected = samples()
    torch.set_default_dtype(torch.float64)
    try:
        with_float64 = samples()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        on_meta = samples()
    for images, images_float64, images_meta in zip(expected, with_float64, on_meta, strict=True):
        assert torch.equal(images, images_float64)
        assert torch.equal(images, images_meta)


def test_the_first_images_do_not_depend_on_n(store):
    denoiser = Optimal(store)
    few, many = sample(denoiser, 3, seed=1).images, sample(denoiser, 8, seed=1).images
    assert torch.equal(few, many[:3])


@pytest.mark.kernels
@pytest.mark.parametrize("images_per_task", [1, 64])
def test_denoised_images_do_not_depend_on_images_per_task(store, monkeypatch, images_per_task):
    runs = {name: Recorded(METHODS[name](store)) for name in METHODS}
    for denoiser in runs.values():
        sample(denoiser, 4, 5)
    monkeypatch.setattr("golddiff.denoiser.Estimator.part_size", images_per_task)
    monkeypatch.setattr("golddiff.estimators.optimal.Optimal.part_size", images_per_task)
    monkeypatch.setattr("golddiff.kernels.rows.ROWS_PER_TASK", images_per_task)
    for name, denoiser in runs.items():
        # Means of values up to 1: sums of 300 terms in another order, each rounded by 2^-24 = 6e-8,
        # and exponentials of float32 logits, which PCA rounds again when the maximum changes.
        assert denoiser.furthest(METHODS[name](store)) < 1e-5


def test_labels_select_the_class_of_each_image(store):
    images = sample(Optimal(store), 6, labels=[0, 1, 2, 0, 1, 2]).images
    distances = torch.cdist(images.flatten(1), store.images().flatten(1))
    assert store.labels[distances.argmin(1)].tolist() == [0, 1, 2, 0, 1, 2]
    of_all = sample(Optimal(store), 3, labels=1).images
    assert torch.equal(sample(Optimal(store), 3, labels=[1], batch_size=2).images, of_all)


def test_points_and_latents_are_not_clipped(make_store):
    far = torch.tensor([[5.0, -7.0], [5.1, -7.1]])
    assert (sample(Optimal(make_store(far)), 2).images.abs() > 4).all()


def test_the_trajectory_is_optional(store):
    run = sample(Optimal(store), 2, steps=4, trajectory=False)
    assert run.trajectory is None
    assert sample(Optimal(store), 2, steps=4).trajectory.shape == (4, 2, 1, 8, 8)


def test_a_run_takes_no_more_memory_than_it_asks_for(monkeypatch):
    """Regression: a trajectory was in memory three times."""
    asked = []
    monkeypatch.setattr("golddiff.sampling.require_memory", lambda size, *_: asked.append(size))

    def denoiser(x, sigma, labels):
        return x / 2

    denoiser.store = SimpleNamespace(shape=(1, 64, 64), is_pixels=True)
    sample(denoiser, 2, 2)
    with peak_memory() as peak:
        run = sample(denoiser, 100, 50, batch_size=10)
    if peak.kind == "resident":  # the system resets the peak
        assert peak.bytes - peak.before < asked[-1] + 20e6
    assert torch.equal(run.images, run.trajectory[-1])
    assert run.images.data_ptr() != run.trajectory[-1].data_ptr()  # may be changed in place


def test_a_denoiser_without_a_store_is_refused():
    with pytest.raises(ArgumentError, match=r"denoiser: got function, expected a call .* 'store'"):
        sample(lambda x, sigma, labels=None: x, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n: got 0"),
        ({"steps": 0}, "steps: got 0"),
        ({"steps": 1001}, "steps: got 1001, expected at most 1000"),
        ({"sampler": "euler"}, "sampler: got 'euler', expected one of ddim, heun"),
        ({"seed": -1}, "seed: got -1"),
        ({"labels": [0, 1]}, "labels: got 2 of them for 4 images"),
        ({"labels": 9}, "labels: got 9, a class with no images"),
        ({"batch_size": 0}, "batch_size: got 0"),
        ({"sigmas": []}, "sigmas: got"),
        ({"sigmas": [1.0, 2.0]}, "noise levels that fall"),
        ({"sigmas": [1.0, 0.0]}, "positive"),
        ({"sigmas": [float("inf"), 1.0]}, r"sigmas: got \[inf"),
        ({"sigmas": ["a"]}, "expected numbers"),
        ({"sigmas": "31"}, "expected numbers"),
        ({"x_init": torch.zeros(3, 1, 8, 8)}, r"x_init: got \(3, 1, 8, 8\)"),
        ({"x_init": np.zeros((4, 1, 8, 8))}, "x_init: got ndarray"),
        ({"x_init": torch.full((4, 1, 8, 8), torch.nan)}, "not finite"),
        ({"x_init": torch.zeros(4, 1, 8, 8).to_sparse()}, "x_init: got"),
        (
            {"x_init": torch.zeros(4, 1, 8, 8).cfloat()},
            "x_init: got torch.complex64",
        ),
        ({"start": (torch.ones(1, 8, 8).byte(), 1.0)}, "start: got torch.uint8, expected floats"),
        ({"x_init": torch.zeros(4, 1, 8, 8), "generator": torch.Generator()}, "generator: got one"),
        ({"generator": np.random.default_rng(0)}, "generator: got numpy"),
        ({"start": torch.zeros(1, 8, 8)}, "start: got Tensor, expected a pair"),
        ({"start": (torch.zeros(8, 8), 0.5)}, r"start: got \(8, 8\)"),
        ({"start": (torch.zeros(1, 8, 8), -1.0)}, "start: got -1.0"),
        ({"start": (torch.zeros(1, 8, 8), 0.5), "sigmas": [1.0]}, "start has noise 0.5"),
    ],
)
def test_invalid_arguments_are_named(store, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        sample(Optimal(store), **{"n": 4, **arguments})


# The generator of steps


@pytest.mark.kernels  # the betas of diffusers, a torch.linspace, have other last digits elsewhere
@pytest.mark.parametrize("count", [1, 3, 10, 50, 1000])
def test_ddim_levels_and_steps_are_those_of_diffusers(store, count):
    scheduler = ddim_scheduler(count, clip=True)
    alphas = [float(scheduler.alphas_cumprod[t]) for t in scheduler.timesteps]
    levels = noise_levels(count, "ddim")
    assert levels == pytest.approx([sigma_of_alpha(alpha) for alpha in alphas], rel=1e-6)
    guess = torch.randn(2, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    denoiser = Guessing(store, guess)
    x_init = initial_noise(2, store.shape, 3)
    x_t = x_init
    for t, alpha, state in zip(
        scheduler.timesteps, alphas, steps(denoiser, x_init, levels), strict=True
    ):
        torch.testing.assert_close(state.x, x_t / alpha**0.5, rtol=1e-5, atol=1e-5)
        step = scheduler.step(denoiser(state.x, state.sigma), t, x_t)
        torch.testing.assert_close(state.x0, step.pred_original_sample, rtol=1e-5, atol=1e-5)
        x_t = step.prev_sample


class Guessing:
    """A denoiser that adds a fixed guess to scaled x; its output leaves [-1, 1]."""

    def __init__(self, store, guess):
        self.store, self.guess = store, guess

    def __call__(self, x, sigma, labels=None):
        return self.guess + x / (1 + sigma)


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_steps_yield_the_trajectory_of_sample_and_the_input_of_the_denoiser(store, sampler):
    denoiser = Recorded(Optimal(store))
    run = sample(Optimal(store), 3, 6, sampler, seed=2)
    states = list(steps(denoiser, run.x_init, run.sigmas, sampler))
    assert [state.sigma for state in states] == run.sigmas
    assert torch.equal(torch.stack([state.x0 for state in states]), run.trajectory)
    assert torch.equal(states[-1].x0, run.images)
    # Heun corrects each step but the last.
    first = denoiser.calls[:: 1 if sampler == "ddim" else 2]
    assert all(torch.equal(s.x, x) for s, (x, *_) in zip(states, first, strict=True))


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_tensors_of_a_state_may_be_changed_in_place(store, sampler):
    run, changed = sample(Optimal(store), 3, 6, sampler, seed=2), []
    for state in steps(Optimal(store), run.x_init, run.sigmas, sampler):
        changed.append(state.x0.clone())
        state.x.zero_()
        state.x0.add_(1).div_(2)
    assert torch.equal(torch.stack(changed), run.trajectory)


def test_small_noise_levels_keep_their_precision(make_store):
    """At sigma 0.001, computing 1 - alpha in float32 would be wrong by 3%."""
    points = make_store(torch.zeros(2, 4))
    x_init = torch.ones(1, 4)
    first, second = steps(Optimal(points), x_init, [0.002, 0.001])
    assert second.x == pytest.approx(first.x / 2, rel=1e-4)


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
@pytest.mark.parametrize("start", [0.05, 0.5, 0.7, 2.0, 5.0])
def test_levels_of_a_run_from_an_image_fall_from_its_noise_level(sampler, start):
    sigmas = noise_levels(10, sampler, start)
    assert sigmas[0] == start
    assert all(a > b > 0 for a, b in itertools.pairwise(sigmas))
    assert 1 < len(sigmas) <= 10
    assert sigmas[-1] < 0.02
    assert noise_levels(1, "ddim", start) == [start]
    assert level_of_strength(1e-4) == noise_levels(1000, "ddim")[-1]


@pytest.mark.parametrize("sampler", ["ddim", "heun"])
@pytest.mark.parametrize("start", [0.001, 0.5, 0.7])
def test_a_run_from_an_image_starts_at_the_image_plus_noise(store, sampler, start):
    image = torch.full(store.shape, 0.5)
    run = sample(Optimal(store), 2, 5, sampler, seed=3, start=(image, start))
    noise = torch.randn((2, *store.shape), generator=torch.Generator().manual_seed(3))
    assert torch.equal(run.x_init, noise)
    x_init = noised(image, start, noise, sampler)
    first = next(iter(steps(Optimal(store), x_init, run.sigmas, sampler)))
    assert torch.allclose(first.x, image + start * noise, atol=1e-5)
    assert torch.equal(first.x0, run.trajectory[0])


def test_a_run_may_start_again_at_its_last_level(store):
    for sampler in ("ddim", "heun"):
        run = sample(Optimal(store), 1, 5, sampler)
        start = run.images[0], run.sigmas[-1]
        assert sample(Optimal(store), 1, 5, sampler, start=start).sigmas == [run.sigmas[-1]]
    levels = torch.tensor([0.3, 0.1])  # in float32, the first is not 0.3
    sigmas = sample(Optimal(store), 1, sigmas=levels, start=(run.images[0], 0.3)).sigmas
    assert sigmas == levels.tolist()


def test_x_init_sigmas_and_generator_replace_the_seed(store):
    denoiser = Optimal(store)
    run = sample(denoiser, 3, steps=4, seed=8)
    noise = run.x_init.clone()
    again = sample(denoiser, 3, x_init=noise, sigmas=run.sigmas)
    noise.zero_()  # the run keeps a copy
    assert torch.equal(again.images, run.images)
    assert torch.equal(again.x_init, run.x_init)
    by_generator = sample(denoiser, 3, steps=4, generator=torch.Generator().manual_seed(8))
    assert torch.equal(by_generator.images, run.images)


def test_progress_shows_a_bar_with_the_name_of_the_method(store, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    sample(Optimal(store), 2, steps=2, progress=True)
    assert "Optimal" in capsys.readouterr().err
    sample(Optimal(store), 2, steps=2)
    assert capsys.readouterr().err == ""


def test_every_function_names_an_unknown_sampler(store):
    noise = torch.zeros(1, *store.shape)
    for call in (
        lambda: noise_levels(10, "euler"),
        lambda: noised(noise, 1.0, noise, "euler"),
        lambda: list(steps(Optimal(store), noise, [1.0], "euler")),
    ):
        with pytest.raises(ArgumentError, match="sampler: got 'euler', expected one of ddim, heun"):
            call()


@pytest.mark.parametrize("wrong", [lambda x: x[:, :1], lambda x: x[:1], lambda x: x.numpy()])
def test_an_output_of_another_shape_than_the_input_is_refused(make_store, wrong):
    class Custom:
        store = make_store(torch.zeros(2, 3, 4, 4))

        def __call__(self, x, sigma, labels=None):
            return wrong(x)

    for sampler in ("ddim", "heun"):
        with pytest.raises(ArgumentError, match=r"denoiser: returned .*, expected Tensor \(2, 3, "):
            sample(Custom(), 2, 2, sampler)


def test_the_store_of_a_denoiser_says_whether_its_values_are_pixels(store):
    def denoiser(x, sigma, labels):
        return x

    denoiser.store = SimpleNamespace(shape=store.shape)
    with pytest.raises(ArgumentError, match=r"denoiser: got function, .* shape and is_pixels"):
        sample(denoiser, 1)
    denoiser.store.is_pixels = True
    assert sample(denoiser, 1, 1).images.abs().max() == 1


def test_bad_arguments_of_steps_are_named_before_the_first_step(store):
    noise = torch.zeros(1, *store.shape)
    for call, message in (
        (lambda: steps(lambda x, sigma, labels: x, noise, [1.0]), "denoiser: got function"),
        (lambda: steps(Optimal(store), noise.byte(), [1.0]), "x_init: got torch.uint8"),
        (lambda: steps(Optimal(store), noise[0], [1.0]), "x_init: got shape"),
        (lambda: noise_levels(0, "ddim"), "steps: got 0, expected an integer of 1 or more"),
    ):
        with pytest.raises(ArgumentError, match=message):
            call()
