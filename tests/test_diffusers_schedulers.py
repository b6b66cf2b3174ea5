"""Every scheduler of diffusers: the model has its noise levels, or refuses it."""

import contextlib
from types import SimpleNamespace

import diffusers
import numpy as np
import pytest
import torch

from golddiff import AnalyticUNet, Oracle, Wiener
from golddiff.system.errors import ArgumentError


def every_scheduler():
    """Diffusers' schedulers with usual and unusual noise levels."""
    options = (
        {}, {"use_karras_sigmas": True}, {"interpolation_type": "log_linear"},
        {"use_karras_sigmas": True, "sigma_min": 0.002, "sigma_max": 80.0},
        {"use_exponential_sigmas": True, "sigma_min": 0.1, "sigma_max": 50.0},
        {"beta_schedule": "scaled_linear", "timestep_spacing": "trailing"},
    )  # fmt: skip
    for name in sorted(dir(diffusers)):
        if not name.endswith("Scheduler") or name.startswith("KDPM2"):  # has two levels a timestep
            continue
        for given in options:
            with contextlib.suppress(ImportError, TypeError):  # not installed, or unknown options
                yield getattr(diffusers, name)(**given)


def own_levels(scheduler):
    """A scheduler's own noise levels at its timesteps."""
    if hasattr(scheduler, "alphas_cumprod") and not hasattr(scheduler, "sigmas"):
        alphas = scheduler.alphas_cumprod[scheduler.timesteps.long()].double()
        return (1 / alphas - 1).sqrt().numpy()
    return np.asarray(scheduler.sigmas[: len(scheduler.timesteps)], np.float64)


@pytest.mark.filterwarnings("ignore")
def test_every_scheduler_has_the_model_s_noise_levels_or_is_refused(make_store, smooth_images):
    """Regression: CogVideoX's, and those of log-linear or wider levels, were taken wrongly."""
    denoiser = Wiener(make_store(smooth_images(9, (1, 4, 4))))
    taken, refused = set(), set()
    for scheduler in every_scheduler():
        try:
            unet = AnalyticUNet(denoiser, scheduler_config=scheduler)
        except ArgumentError:
            refused.add(type(scheduler).__name__)
            continue
        scheduler.set_timesteps(9)
        times, own = scheduler.timesteps.double(), own_levels(scheduler)
        # Many round their timesteps.
        nearest = [unet.sigma((times + step).clamp(0, 999)) for step in (-1.01, 1.01)]
        assert (nearest[0] <= own * (1 + 1e-3)).all(), scheduler
        assert (own <= nearest[1] * (1 + 1e-3)).all(), scheduler
        taken.add(type(scheduler).__name__)
    assert len(taken) > 15
    assert {"CogVideoXDDIMScheduler", "DDPMWuerstchenScheduler"} <= refused - taken


def test_whole_timesteps_are_exact_and_own_bounds_may_be_rounded(make_store, smooth_images):
    denoiser = Wiener(make_store(smooth_images(9, (1, 4, 4))))
    spaced = diffusers.EulerDiscreteScheduler(use_karras_sigmas=True, sigma_max=157.5)  # of 157.407
    plain, rounded = (AnalyticUNet(denoiser, scheduler_config=s) for s in (None, spaced))
    assert np.array_equal(plain.sigma(torch.arange(1000)), rounded.sigma(torch.arange(1000)))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("DPMSolverMultistep", {"use_flow_sigmas": True}),
        ("EulerDiscrete", {"timestep_type": "continuous", "prediction_type": "v_prediction"}),
    ],
)
def test_a_network_s_schedule_is_not_one_of_other_timesteps(name, options):
    """Regression: the network was called at timestep 258, where diffusers calls it at 0."""
    scheduler = getattr(diffusers, f"{name}Scheduler")(**options)
    with pytest.raises(ArgumentError, match=f"schedule: got one with .*{next(iter(options))[:8]}"):
        Oracle(lambda x, t: x, "v", scheduler)
    Oracle(lambda x, t: x, "v", scheduler.alphas_cumprod)


@pytest.mark.parametrize("config", ["own", None, SimpleNamespace(prediction_type="epsilon")])
def test_a_network_s_schedule_is_the_alphas_of_any_scheduler(config):
    """Regression: CogVideoX's, which are shifted, and those of others' classes were refused."""
    scheduler = diffusers.CogVideoXDDIMScheduler()
    alphas, times = scheduler.alphas_cumprod, []
    if config != "own":
        scheduler = SimpleNamespace(alphas_cumprod=alphas, config=config)
    oracle = Oracle(lambda x, t: times.append(int(t)) or x, "epsilon", scheduler)
    oracle(torch.zeros(1, 1, 4, 4), float((1 / alphas[300] - 1).sqrt()))
    assert times == [300]
