"""AnalyticDenoiser equals deepinv's MMSE denoiser, and deepinv's samplers run on it."""

import pytest
import torch

import golddiff
from tests.deepinv_for_tests import deepinv


@pytest.fixture(scope="module")
def store(make_store, smooth_images):
    return make_store(smooth_images(200, (3, 16, 16)), torch.arange(200) % 2)


@pytest.fixture(scope="module")
def images(store):
    return (store.images() + 1) / 2


def analytic(store, **options):
    from golddiff.deepinv import AnalyticDenoiser

    return AnalyticDenoiser(golddiff.Optimal(store), **options)


@pytest.mark.parametrize("sigma", [0.05, 0.25, 1.5, 10.0])
def test_output_and_gradient_equal_deepinvs_mmse(store, images, sigma):
    # In float32, cancellation gives MMSE's gradient an error of 0.02 at sigma 0.05.
    mmse = deepinv.models.MMSE(images, torch.device("cpu"), torch.float64)
    x = images[:4] + sigma * torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    results = []
    for model in (mmse, analytic(store)):
        query = x.clone().requires_grad_()
        out = model(query, sigma)
        (out * torch.linspace(-1, 1, out.numel()).reshape(out.shape)).sum().backward()
        results.append((out.detach(), query.grad))
    (a, a_gradient), (b, b_gradient) = results
    assert a_gradient.isfinite().all()
    assert (a - b).abs().max() < 1e-4
    assert (a_gradient - b_gradient).abs().max() < 1e-3 * max(1.0, float(a_gradient.abs().max()))


def test_sigma_per_image_and_float64_input(store, images):
    d, x = analytic(store), images[:3] + 0.2 * torch.randn(3, 3, 16, 16)
    levels = torch.tensor([0.1, 0.2, 0.4])
    together = d(x, levels.reshape(3, 1, 1, 1))
    for i in range(3):
        assert torch.allclose(together[i], d(x[i : i + 1], float(levels[i]))[0], atol=1e-6)
    assert analytic(store, labels=1)(x.double(), 0.2).dtype == torch.float64


def test_a_number_is_not_rounded_to_float32(store, images):
    golden = golddiff.GoldDiff(golddiff.Optimal(store), golddiff.PaperSchedule(variant="released"))
    x = images[:2] + 0.3 * torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    from golddiff.deepinv import AnalyticDenoiser

    assert torch.equal(AnalyticDenoiser(golden)(x, 0.3), (golden(2 * x - 1, 0.6) + 1) / 2)


def test_what_the_call_cannot_use_is_refused(store, images):
    d = analytic(store)
    with pytest.raises(golddiff.ArgumentError, match="sigma: got None"):
        d(images[:1], None)
    with pytest.raises(golddiff.ArgumentError, match="labels: give them to AnalyticDenoiser"):
        d(images[:1], 0.3, labels=3)


def test_deepinvs_samplers_run_on_it(store, images):
    physics = deepinv.physics.Inpainting((3, 16, 16), mask=0.5)
    physics.noise_model = deepinv.physics.GaussianNoise(0.05)
    y, fidelity = physics(images[:2]), deepinv.optim.data_fidelity.L2()
    d = analytic(store)
    samplers = [
        deepinv.sampling.DDRM(d, sigmas=[1.0, 0.5, 0.0]),
        deepinv.sampling.DiffPIR(d, fidelity, max_iter=3),
        deepinv.sampling.DPS(d, num_steps=5, dtype=torch.float32),
        deepinv.sampling.PosteriorDiffusion(
            deepinv.sampling.PiGDMDataFidelity(),
            d,
            deepinv.sampling.VariancePreservingDiffusion(),
            deepinv.sampling.DDPMSolver(torch.linspace(1, 0, 5), rng=torch.Generator()),
        ),
    ]
    for sampler in samplers:
        out = sampler(y, physics)
        assert out.shape == images[:2].shape
        assert torch.isfinite(out).all()


def test_a_physics_is_accepted_as_operator(store, images):
    physics = deepinv.physics.Downsampling((3, 16, 16), filter=None, factor=2)
    y = physics.A(store.images([5]))
    logs = golddiff.log_likelihood(store, physics, y, 0.05)
    assert int(logs.argmax()) == 5
