"""Schedules and parameterisations: how a trained network becomes a denoiser.

Two functions turn a network F into a denoiser (Karras et al. 2022, Eq. 7, for any training):

- a *schedule* maps sigma (B,) to the factor of x and to the network's conditioning t;
- a *parameterisation* maps (x, sigma, output of F) to x0.

Both run in float64: at sigma 157, x0 of size 1 is the difference of two numbers of size 157.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any

import numpy as np
import torch

from golddiff.noise import alpha_of_sigma, timestep_sigmas
from golddiff.system.arguments import SHOWN, as_dense_tensor
from golddiff.system.errors import ArgumentError

TIMESTEPS = 1000
# Timesteps this near an integer are rounded to it: schedulers hold alphas in float32.
STEP_TOLERANCE = 0.01
# Values of a diffusers scheduler's options with which its timesteps are those of its betas.
USUAL = {
    "use_flow_sigmas": (None, False),
    "snr_shift_scale": (None, 1),  # CogVideoX
    "interpolation_type": (None, "linear"),
}
# Smaller alphas are zeros with a rounding error.
MIN_ALPHA = 1e-9
# Rounding error of the last level, in log sigma.
LOG_TOLERANCE = 1e-3

Schedule = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Parameterisation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@cache
def ddpm_alphas() -> torch.Tensor:
    """alpha_t = prod_(s <= t) (1 - beta_s), t = 0..999, linear betas 1e-4 to 0.02; float64."""
    return torch.from_numpy(np.array([alpha_of_sigma(sigma) for sigma in timestep_sigmas()]))


class Steps:
    """Variance-preserving schedule (DDPM): the network's input is sqrt(alpha_t) x and its time t.

    Args:
        alphas: (T,) cumulative products, decreasing, below 1. A final 0 (a zero-SNR schedule) is
            dropped, since pure noise has no finite sigma.

    Attributes:
        sigmas: (T,) float64 noise levels sqrt((1 - alpha) / alpha), ascending.
    """

    def __init__(self, alphas: torch.Tensor) -> None:
        a = alphas.detach().to("cpu", torch.float64)
        falling = a.ndim == 1 and bool((a >= 0).all()) and bool((a.diff() < 0).all())
        a = a[a > MIN_ALPHA]
        if not falling or len(a) < 2 or not bool(a[0] < 1):
            raise ArgumentError("schedule: expected cumulative alphas (T,) that fall from 1 to 0")
        self.sigmas = ((1 - a) / a).sqrt()

    def __call__(self, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """1 / sqrt(1 + sigma^2) and timesteps (B,), float64, or int64 if all are training steps.

        Timesteps are interpolated in log sigma; one within 0.01 of an integer is rounded to it.
        Levels below the first training step get timestep 0; those above the last raise
        ArgumentError.
        """
        levels, log = self.sigmas.log(), sigma.to("cpu", torch.float64).log()
        if bool((log > levels[-1] + LOG_TOLERANCE).any()):
            raise ArgumentError(
                f"sigma: got {float(sigma.max()):g}, but this network was trained on levels up to "
                f"{float(self.sigmas[-1]):.1f}"
            )
        t = torch.from_numpy(np.interp(log.numpy(), levels.numpy(), np.arange(len(levels))))
        whole = t.round()
        near = (t - whole).abs() < STEP_TOLERANCE
        t = whole.long() if bool(near.all()) else torch.where(near, whole, t)
        return (1 + sigma.square()).rsqrt(), t


def x0_from_eps(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """x0 = x - sigma eps (Ho et al. 2020)."""
    return x - sigma * out


def x0_from_v(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """x0 from v = sqrt(alpha) eps - sqrt(1 - alpha) x0 (Salimans and Ho 2022)."""
    square = 1 + sigma.square()
    return x / square - sigma / square.sqrt() * out


def x0_from_flow(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """x0 from the velocity eps - x0 (Liu et al. 2023; Lipman et al. 2023)."""
    return (x - sigma * out) / (1 + sigma)


def x0_from_edm(
    x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor, sigma_data: float
) -> torch.Tensor:
    """x0 = c_skip x + c_out F (Karras et al. 2022, Table 1, column "Ours")."""
    total = sigma.square() + sigma_data**2
    return sigma_data**2 / total * x + sigma * sigma_data / total.sqrt() * out


def x0_from_x0(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """The output itself."""
    return out


# The names that diffusers uses, and that golddiff's files store.
EPSILON, V = "epsilon", "v_prediction"
PREDICTIONS: dict[str, Parameterisation] = {
    EPSILON: x0_from_eps,
    V: x0_from_v,
    "sample": x0_from_x0,
}
BY_NAME = PREDICTIONS | {
    "eps": x0_from_eps, "v": x0_from_v, "x0": x0_from_x0, "flow": x0_from_flow,
}  # fmt: skip


def flow_schedule(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Factor 1 - t and time t = sigma / (1 + sigma), in (0, 1), of (1 - t) x0 + t eps."""
    return 1 / (1 + sigma), sigma / (1 + sigma)


def edm_schedule(sigma: torch.Tensor, sigma_data: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor divides x by its standard deviation (Karras et al. 2022, Table 1)."""
    return (sigma.square() + sigma_data**2).rsqrt(), sigma.log() / 4


def sigma_schedule(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The network gets x and sigma."""
    return torch.ones_like(sigma), sigma


def find_parameterisation(choice: str | Parameterisation, sigma_data: float) -> Parameterisation:
    """The parameterisation of :class:`golddiff.Oracle`'s argument, a name or a function."""
    if callable(choice):
        return choice
    by_name = BY_NAME | {"edm": partial(x0_from_edm, sigma_data=sigma_data)}
    if not isinstance(choice, str) or choice not in by_name:
        raise ArgumentError(
            f"parameterisation: got {choice!r}, expected eps, v, x0, flow or edm, or a function of "
            "(x, sigma, output)"
        )
    return by_name[choice]


def check_betas(argument: str, config: Mapping[str, Any]) -> None:
    """Raise ArgumentError if a scheduler's timesteps are not those of its betas."""
    odd = [name for name, usual in USUAL.items() if config.get(name) not in usual]
    if (config.get("timestep_type"), config.get("prediction_type")) == ("continuous", V):
        odd.append("timestep_type")  # Stable Video Diffusion's timesteps are log(sigma) / 4
    if odd:
        raise ArgumentError(
            f"{argument}: got one with {odd[0]}={config[odd[0]]!r:.{SHOWN}}, whose timesteps are "
            "not those of its betas, expected one such as DDIM's, Euler's or DPM-Solver's"
        )


def find_schedule(choice: Any, parameterisation: object, sigma_data: float) -> Schedule:
    """The schedule of :class:`golddiff.Oracle`'s argument; None is the parameterisation's own."""
    if choice is None:
        if parameterisation == "flow":
            return flow_schedule
        if parameterisation == "edm":
            return partial(edm_schedule, sigma_data=sigma_data)
        return Steps(ddpm_alphas())
    expected = "cumulative alphas, a scheduler that has them, 'sigma', or a function of sigma"
    alphas = getattr(choice, "alphas_cumprod", choice)
    if isinstance(alphas, torch.Tensor | np.ndarray | list | tuple):
        config = getattr(choice, "config", {})
        config = config if isinstance(config, Mapping) else getattr(config, "__dict__", {})
        prediction = config.get("prediction_type", EPSILON)
        agree = BY_NAME.get(str(parameterisation)) is PREDICTIONS.get(prediction)
        # Epsilon is diffusers' default, so it need not be meant.
        if prediction != EPSILON and isinstance(parameterisation, str) and not agree:
            raise ArgumentError(
                f"schedule: got a scheduler with prediction_type {prediction!r}, but "
                f"parameterisation is {parameterisation!r}; make the two agree, or give the "
                "scheduler's alphas_cumprod (flow matching: leave schedule out)"
            )
        check_betas("schedule", {**config, "snr_shift_scale": None})  # alphas_cumprod has it
        alphas = as_dense_tensor("schedule", alphas, expected)
        # Its last alpha is 0, or the small number that some schedulers put in its place.
        return Steps(alphas[:-1] if config.get("rescale_betas_zero_snr") else alphas)
    if choice == "sigma":
        return sigma_schedule
    is_class = isinstance(choice, type)
    if is_class or not callable(choice):
        is_scheduler = hasattr(choice, "config") and not is_class
        got = type(choice).__name__ if is_scheduler else f"{choice!r:.{SHOWN}}"
        raise ArgumentError(f"schedule: got {got}, expected {expected}")
    return choice
