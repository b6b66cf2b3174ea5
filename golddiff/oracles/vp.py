"""Networks trained on the variance-preserving steps of DDPM, as denoisers in sigma coordinates."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import torch

from golddiff.errors import ArgumentError

TIMESTEPS = 1000
# A level this near a training step, in steps, is that step: schedulers hold alphas in float32.
SAME_STEP = 0.01
# The last level's own rounding.
ABOVE = 1e-3

Network = Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], torch.Tensor]


@cache
def ddpm_alphas() -> torch.Tensor:
    """alpha_t = prod_(s <= t) (1 - beta_s), t = 0..999, betas 1e-4 to 0.02 on a line; float64."""
    betas = torch.linspace(1e-4, 0.02, TIMESTEPS, dtype=torch.float64)
    return (1 - betas).cumprod(0)


class Steps:
    """The training steps of a variance-preserving process, and the noise levels between them.

    Args:
        alphas: (T,) cumulative products, falling, all above 0.

    Attributes:
        sigmas: (T,) float64 noise levels sqrt((1 - alpha) / alpha), ascending.
    """

    def __init__(self, alphas: torch.Tensor) -> None:
        a = alphas.to("cpu", torch.float64)
        self.sigmas = ((1 - a) / a).sqrt()

    def at(self, sigma: torch.Tensor) -> torch.Tensor:
        """The timestep of each level (B,), float64, fractional between two training steps.

        Interpolated in log sigma; a level within 0.01 of a step is that step exactly. Below the
        first step it is 0: the network takes the little noise for its smallest.

        Raises:
            ArgumentError: a level above the last training step's. No scaling makes up for it: the
                prediction there is the network's guess about data that it cannot see.
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


def _of_epsilon(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return x - sigma * out


def _of_v(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """With v = sqrt(alpha) eps - sqrt(1 - alpha) x0 (Salimans and Ho 2022)."""
    square = 1 + sigma.square()
    return x / square - sigma / square.sqrt() * out


def _of_sample(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return out


EPSILON, V = "epsilon", "v_prediction"
PREDICTIONS = {"epsilon": _of_epsilon, "v_prediction": _of_v, "sample": _of_sample}


class VPDenoiser:
    """E[x0 | x] of a network that was trained on x_t = sqrt(alpha_t) x0 + sqrt(1 - alpha_t) eps.

    Args:
        network: called with x_t (B, C, H, W), t (B,) and labels (B,) or None. t is int64 where
            every level of the batch is a training step's, else float32.
        steps: the process.
        prediction: what the network returns, a name in ``PREDICTIONS``.
    """

    def __init__(self, network: Network, steps: Steps, prediction: str = "epsilon") -> None:
        self.network, self.steps, self.prediction = network, steps, prediction

    def __call__(
        self, x: torch.Tensor, sigma: torch.Tensor, labels: torch.Tensor | None
    ) -> torch.Tensor:
        """Posterior means of x (B, C, H, W) at levels (B,), float32."""
        t = self.steps.at(sigma)
        t = t.long() if bool((t == t.round()).all()) else t.float()
        # At sigma 157 an x0 of size 1 is what is left of two numbers of size 157.
        exact = torch.float32 if x.device.type == "mps" else torch.float64
        s = sigma.to(x.device, exact)[:, None, None, None]
        noisy = x.to(exact)
        x_t = (noisy / (1 + s.square()).sqrt()).float()
        out = self.network(x_t, t.to(x.device), labels)
        return PREDICTIONS[self.prediction](noisy, s, out.to(exact)).float()
