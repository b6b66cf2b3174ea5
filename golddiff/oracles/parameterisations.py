"""What networks are trained to return, and what they are given of the noise.

A network F becomes a denoiser by two functions (Karras et al. 2022, Eq. 7, for every training):

- a *schedule* of sigma (B,) gives the factor of x that the network sees, and what it is given;
- a *parameterisation* of (x, sigma, F's output) gives x0.

All of it in float64: at sigma 157 an x0 of size 1 is what is left of two numbers of size 157.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch

from golddiff.noise import alpha_of_sigma, timestep_sigmas
from golddiff.system.arguments import SHOWN
from golddiff.system.errors import ArgumentError

TIMESTEPS = 1000
# A level this near a training step, in steps, is that step: schedulers hold alphas in float32.
SAME_STEP = 0.01
# An alpha below it is a zero that was rounded.
NO_SIGNAL = 1e-9
# The last level's own rounding.
ABOVE = 1e-3

Schedule = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Parameterisation = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@cache
def ddpm_alphas() -> torch.Tensor:
    """alpha_t = prod_(s <= t) (1 - beta_s), t = 0..999, betas 1e-4 to 0.02 on a line; float64."""
    return torch.tensor([alpha_of_sigma(sigma) for sigma in timestep_sigmas()], dtype=torch.float64)


class Steps:
    """Schedule of networks that see sqrt(alpha_t) x, and are given t: DDPM's (variance preserving).

    Args:
        alphas: (T,) cumulative products, falling, below 1. A last one of 0 (a zero-SNR schedule) is
            left out: sigma has no number for pure noise.

    Attributes:
        sigmas: (T,) float64 noise levels sqrt((1 - alpha) / alpha), ascending.
    """

    def __init__(self, alphas: torch.Tensor) -> None:
        a = alphas.detach().to("cpu", torch.float64)
        falling = a.ndim == 1 and bool((a >= 0).all()) and bool((a.diff() < 0).all())
        a = a[a > NO_SIGNAL]
        if not falling or len(a) < 2 or not bool(a[0] < 1):
            raise ArgumentError("schedule: expected cumulative alphas (T,) that fall from 1 to 0")
        self.sigmas = ((1 - a) / a).sqrt()

    def __call__(self, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """1 / sqrt(1 + sigma^2) and timesteps (B,): int64 where all are a training step's."""
        t = self.at(sigma)
        return (1 + sigma.square()).rsqrt(), t.long() if bool((t == t.round()).all()) else t

    def at(self, sigma: torch.Tensor) -> torch.Tensor:
        """The timestep of each level (B,), float64, fractional between two training steps.

        Interpolated in log sigma; a level within 0.01 of a step is that step exactly. Below the
        first step it is 0: the network takes the little noise for its smallest. Above the last
        it is refused: no scaling makes up for data that the network cannot see.
        """
        levels, log = self.sigmas.log(), sigma.to("cpu", torch.float64).log()
        if bool((log > levels[-1] + ABOVE).any()):
            raise ArgumentError(
                f"sigma: got {float(sigma.max()):g}, but this network was trained on levels up to "
                f"{float(self.sigmas[-1]):.1f}"
            )
        t = torch.from_numpy(np.interp(log.numpy(), levels.numpy(), np.arange(len(levels))))
        whole = t.round()
        return torch.where((t - whole).abs() < SAME_STEP, whole, t)


def of_eps(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """x0 = x - sigma eps (Ho et al. 2020)."""
    return x - sigma * out


def of_v(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """x0 of v = sqrt(alpha) eps - sqrt(1 - alpha) x0 (Salimans and Ho 2022)."""
    square = 1 + sigma.square()
    return x / square - sigma / square.sqrt() * out


def of_flow(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """x0 of the velocity eps - x0 (Liu et al. 2023; Lipman et al. 2023)."""
    return (x - sigma * out) / (1 + sigma)


def of_edm(sigma_data: float) -> Parameterisation:
    """x0 = c_skip x + c_out F (Karras et al. 2022, Table 1, column "Ours")."""

    def x0(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        total = sigma.square() + sigma_data**2
        return sigma_data**2 / total * x + sigma * sigma_data / total.sqrt() * out

    return x0


# diffusers' names too, which are also those in golddiff's files.
EPSILON, V = "epsilon", "v_prediction"
X0: Parameterisation = lambda x, sigma, out: out  # noqa: E731
PREDICTIONS: dict[str, Parameterisation] = {EPSILON: of_eps, V: of_v, "sample": X0}
NAMED = PREDICTIONS | {"eps": of_eps, "v": of_v, "x0": X0, "flow": of_flow}


def find_parameterisation(given: str | Parameterisation, sigma_data: float) -> Parameterisation:
    """A parameterisation by its name, or the function itself."""
    if given == "edm":
        return of_edm(sigma_data)
    found = given if callable(given) else NAMED.get(given) if isinstance(given, str) else None
    if found is None:
        raise ArgumentError(
            f"parameterisation: got {given!r}, expected eps, v, x0, flow or edm, or a function of "
            "(x, sigma, output)"
        )
    return found


def find_schedule(given: Any, parameterisation: object, sigma_data: float) -> Schedule:
    """A schedule: alphas, a diffusers scheduler, "sigma", a function, or a training's own."""
    if given is None:
        if parameterisation == "flow":  # (1 - t) x0 + t eps: t = sigma / (1 + sigma) in (0, 1)
            return lambda sigma: (1 / (1 + sigma), sigma / (1 + sigma))
        if parameterisation == "edm":  # x over its standard deviation
            return lambda sigma: ((sigma.square() + sigma_data**2).rsqrt(), sigma.log() / 4)
        return Steps(ddpm_alphas())
    alphas = given if isinstance(given, torch.Tensor) else getattr(given, "alphas_cumprod", None)
    if isinstance(alphas, torch.Tensor):
        return Steps(alphas)
    if isinstance(given, str) and given == "sigma":
        return lambda sigma: (torch.ones_like(sigma), sigma)
    if not callable(given):
        raise ArgumentError(
            f"schedule: got {given!r:.{SHOWN}}, expected cumulative alphas, a scheduler that has "
            "them, 'sigma', or a function of sigma"
        )
    return given  # type: ignore[no-any-return]
