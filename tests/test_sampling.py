"""Samplers follow their equations; a seed fixes the images."""

import pytest
import torch

from golddiff import PCA, GoldDiff, Optimal, PaperSchedule, sample
from golddiff.errors import ArgumentError
from golddiff.noise import alpha_of_sigma, ddim_sigmas, edm_sigmas, sigma_of_alpha


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(300, (1, 8, 8)), torch.arange(300) % 3)


METHODS = {
    "optimal": Optimal,
    "pca": PCA,
    "golddiff-optimal": lambda s: GoldDiff(Optimal(s)),
    "golddiff-pca released": lambda s: GoldDiff(PCA(s), PaperSchedule(variant="released")),
}


def test_the_paper_s_ten_noise_levels():
    sigmas = ddim_sigmas(10)
    assert sigmas[0] == pytest.approx(60.8, abs=0.05)
    assert sigmas[-1] == pytest.approx(0.01, rel=1e-3)
    assert sigmas == sorted(sigmas, reverse=True)
    betas = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    alphas = torch.cumprod(1 - betas, 0)[torch.arange(900, -1, -100)]
    assert sigmas == pytest.approx(((1 - alphas) / alphas).sqrt().tolist(), rel=1e-4)


def test_edm_levels_run_from_80_to_0_002():
    sigmas = edm_sigmas(10)
    assert (sigmas[0], sigmas[-1]) == (pytest.approx(80), pytest.approx(0.002))
    assert sigma_of_alpha(alpha_of_sigma(3.7)) == pytest.approx(3.7)


def test_ddim_is_its_equation_in_sigma_coordinates(store):
    """x' = x0 + sigma' (x - x0) / sigma, from sqrt(1 + sigma^2) times unit noise."""
    denoiser = Optimal(store)
    run = sample(denoiser, 3, seed=5)
    x = run.x_init.double() * (1 + run.sigmas[0] ** 2) ** 0.5
    for i, sigma in enumerate(run.sigmas):
        x0 = denoiser(x, sigma).double()
        assert (run.trajectory[i] - x0).abs().max() < 1e-4
        if i + 1 < len(run.sigmas):
            x = x0 + run.sigmas[i + 1] * (x - x0) / sigma
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


def test_heun_calls_the_denoiser_19_times_in_10_steps(store):
    calls = []
    denoiser = Optimal(store)

    class Counting:
        def __init__(self):
            self.store = store

        def __call__(self, x, sigma, labels=None):
            calls.append(sigma)
            return denoiser(x, sigma, labels)

    sample(Counting(), 1, sampler="heun")
    assert len(calls) == 19


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("sampler", ["ddim", "heun"])
def test_a_seed_fixes_the_images_whatever_the_batch_size(store, name, sampler):
    denoiser = METHODS[name](store)
    one, some, all_ = (
        sample(denoiser, 16, sampler=sampler, seed=3, batch_size=b).images for b in (1, 5, 16)
    )
    assert (one - all_).abs().max() < 1e-4
    assert (some - all_).abs().max() < 1e-4
    assert (sample(denoiser, 16, sampler=sampler, seed=4).images - all_).abs().max() > 0.1


def test_the_first_images_do_not_depend_on_how_many_are_asked_for(store):
    denoiser = Optimal(store)
    few, many = sample(denoiser, 3, seed=1).images, sample(denoiser, 8, seed=1).images
    assert (few - many[:3]).abs().max() < 1e-5


@pytest.mark.parametrize("images_per_task", [1, 7, 64, 300])
def test_a_seed_fixes_the_images_whatever_the_chunk_size(store, monkeypatch, images_per_task):
    runs = {name: sample(METHODS[name](store), 4).images for name in METHODS}
    monkeypatch.setattr("golddiff.estimators.pca.IMAGES_PER_TASK", images_per_task)
    monkeypatch.setattr("golddiff.estimators.optimal.ROWS_PER_TASK", images_per_task)
    monkeypatch.setattr("golddiff.kernels.rows.ROWS_PER_TASK", images_per_task)
    for name, images in runs.items():
        assert (sample(METHODS[name](store), 4).images - images).abs().max() < 1e-4


def test_labels_choose_the_class_of_each_image(store):
    images = sample(Optimal(store), 6, labels=[0, 1, 2, 0, 1, 2]).images
    distances = torch.cdist(images.flatten(1), store.images().flatten(1))
    assert store.labels[distances.argmin(1)].tolist() == [0, 1, 2, 0, 1, 2]


def test_points_and_latents_are_not_clipped(make_store):
    far = torch.tensor([[5.0, -7.0], [5.1, -7.1]])
    assert (sample(Optimal(make_store(far)), 2).images.abs() > 4).all()


def test_no_trajectory_unless_kept(store):
    run = sample(Optimal(store), 2, steps=4, trajectory=False)
    assert run.trajectory is None
    assert sample(Optimal(store), 2, steps=4).trajectory.shape == (4, 2, 1, 8, 8)


def test_a_call_without_a_store_has_no_shape_to_sample():
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
    ],
)
def test_bad_input_is_named(store, arguments, message):
    with pytest.raises(ArgumentError, match=message):
        sample(Optimal(store), **{"n": 4, **arguments})
