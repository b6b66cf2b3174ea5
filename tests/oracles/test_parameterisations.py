import math

import pytest
import torch
from diffusers import DDPMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler
from hypothesis import given
from hypothesis import strategies as st

from golddiff.noise import ddim_sigmas
from golddiff.oracles.oracle import Oracle
from golddiff.oracles.parameterisations import PREDICTIONS, Steps, ddpm_alphas
from golddiff.system.errors import ArgumentError
from tests.ddim_for_tests import ddim_scheduler

STEPS = Steps(ddpm_alphas())


def test_alphas_match_the_diffusers_scheduler():
    expected = ddim_scheduler(10, clip=True).alphas_cumprod
    ddpm_alphas.cache_clear()
    with torch.device("meta"):
        ddpm_alphas()  # the default device has no effect on the cached tensor
    torch.testing.assert_close(ddpm_alphas().float(), expected, rtol=2e-5, atol=0)


@pytest.mark.parametrize("steps", [1, 10, 50, 1000])
def test_sampler_levels_are_whole_timesteps(steps):
    expected = ddim_scheduler(steps, clip=True).timesteps.double()
    _, t = STEPS(torch.tensor(ddim_sigmas(steps), dtype=torch.float64))
    assert torch.equal(t, expected.long())


@given(st.floats(0, 999))
def test_levels_between_steps_interpolate_in_log_sigma(t):
    low = min(int(t), 998)
    a, b = STEPS.sigmas[low].log(), STEPS.sigmas[low + 1].log()
    sigma = ((1 - (t - low)) * a + (t - low) * b).exp()
    assert float(STEPS(sigma[None])[1]) == pytest.approx(t, abs=0.011)


def test_zero_snr_level_is_dropped_and_bad_alphas_are_refused():
    scheduler = DDPMScheduler(rescale_betas_zero_snr=True, prediction_type="v_prediction")
    assert scheduler.alphas_cumprod[-1] == 0
    schedule = Oracle(lambda x_t, t: torch.zeros_like(x_t), "v", scheduler).schedule
    last = float(scheduler.alphas_cumprod[-2])
    assert len(schedule.sigmas) == 999
    assert float(schedule.sigmas[-1]) == pytest.approx((1 / last - 1) ** 0.5)
    for alphas in ([0.9, 0.5, 0.6], [0.9, -0.1], [0.9], [], [1e-10, 1e-11], [[0.9], [0.5]]):
        with pytest.raises(ArgumentError, match="that fall from 1 to 0"):
            Steps(torch.tensor(alphas))


@pytest.mark.parametrize("kind", [EulerDiscreteScheduler, DPMSolverMultistepScheduler])
def test_schedulers_that_replace_the_last_alpha_of_zero_snr_have_the_same_levels(kind):
    settings = {"rescale_betas_zero_snr": True, "prediction_type": "v_prediction"}
    scheduler = kind(**settings)
    assert scheduler.alphas_cumprod[-1] > scheduler.alphas_cumprod[-2]
    levels, expected = (
        Oracle(lambda x_t, t: torch.zeros_like(x_t), "v", s).schedule.sigmas
        for s in (scheduler, DDPMScheduler(**settings))
    )
    torch.testing.assert_close(levels, expected)


def test_sigma_below_the_first_step_maps_to_it():
    _, t = STEPS(torch.tensor([1e-6, 0.002, 0.0099], dtype=torch.float64))
    assert t.tolist() == [0, 0, 0]


def test_sigma_above_the_last_step_is_an_error():
    assert float(STEPS(torch.tensor([157.4]))[1]) == pytest.approx(999, abs=0.02)
    with pytest.raises(ArgumentError, match=r"sigma: got 200.*up to 157\.4"):
        STEPS(torch.tensor([1.0, 200.0]))


@given(st.floats(0.01, 157), st.integers(0, 2**31))
def test_every_prediction_type_recovers_x0(sigma, seed):
    generator = torch.Generator().manual_seed(seed)
    x0, eps = (torch.randn(2, 1, 2, 2, generator=generator, dtype=torch.float64) for _ in "ab")
    a = 1 / (1 + sigma**2)
    outputs = {
        "epsilon": eps,
        "sample": x0,
        "v_prediction": math.sqrt(a) * eps - math.sqrt(1 - a) * x0,
    }
    assert outputs.keys() == PREDICTIONS.keys()
    for kind, out in outputs.items():
        recovered = PREDICTIONS[kind](
            x0 + sigma * eps, torch.tensor(sigma, dtype=torch.float64), out
        )
        torch.testing.assert_close(recovered, x0, atol=1e-9, rtol=0)


def test_network_receives_the_vp_state_and_its_timestep():
    inputs = []

    def network(x_t, t):
        inputs.append((x_t, t))
        return torch.zeros_like(x_t)

    x, sigma = torch.randn(2, 1, 2, 2), torch.tensor(ddim_sigmas(10)[:2], dtype=torch.float64)
    output = Oracle(network)(x, sigma)
    torch.testing.assert_close(output, x)
    x_t, t = inputs[0]
    alpha = ddim_scheduler(10, clip=True).alphas_cumprod[[900, 800]]
    torch.testing.assert_close(x_t, x * alpha.sqrt()[:, None, None, None], rtol=1e-4, atol=0)
    assert t.tolist() == [900, 800]
    assert t.dtype == torch.int64
    Oracle(network)(x, torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert inputs[1][1].dtype == torch.float32


def test_exact_epsilon_recovers_x0_at_the_highest_sigma():
    x0, eps = torch.full((1, 1, 2, 2), 0.25), torch.full((1, 1, 2, 2), 1.5)
    sigma = STEPS.sigmas[-1:]
    x = (x0 + sigma * eps).float()
    recovered = Oracle(lambda x_t, t: eps)(x, sigma)
    # The remaining error is the rounding of x, whose values are near 236.
    torch.testing.assert_close(recovered, x0, atol=2e-5, rtol=0)
