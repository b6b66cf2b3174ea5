"""How a network F becomes a denoiser: D(x, sigma) = c_skip x + c_out F(c_in x, c_noise).

Karras et al. 2022, Eq. 7 and Table 1, row "Network and preconditioning".
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import nn


class Scales(NamedTuple):
    """The coefficients of Eq. 7 at noise levels (B, 1, 1, 1)."""

    c_skip: torch.Tensor | float
    c_out: torch.Tensor
    c_in: torch.Tensor | float
    c_noise: torch.Tensor


class Preconditioned(nn.Module, ABC):
    """A network with its preconditioning.

    Args:
        model: the network, called as model(c_in x, c_noise (B,), one-hot classes or None).

    Attributes:
        sigma_min: lowest noise level that the network was made for.
        sigma_max: highest.
    """

    sigma_min: float
    sigma_max: float

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, x: torch.Tensor, sigma: torch.Tensor, classes: torch.Tensor | None
    ) -> torch.Tensor:
        """The denoised images.

        Args:
            x: (B, C, H, W) noisy images, x0 + sigma * eps.
            sigma: (B,) noise levels.
            classes: (B, label_dim) one-hot, or None.

        Returns:
            (B, C, H, W).
        """
        scales = self.scales(sigma[:, None, None, None])
        raw = self.model(scales.c_in * x, scales.c_noise.flatten(), classes)
        # iDDPM's networks also predict a variance, in as many channels again.
        made: torch.Tensor = scales.c_skip * x + scales.c_out * raw[:, : x.shape[1]]
        return made

    @abstractmethod
    def scales(self, sigma: torch.Tensor) -> Scales:
        """The coefficients at noise levels (B, 1, 1, 1)."""


class EDMPrecond(Preconditioned):
    """EDM's own.

    Args:
        model: the network.
        sigma_min: lowest noise level.
        sigma_max: highest.
        sigma_data: standard deviation of the training images.
    """

    def __init__(
        self,
        model: nn.Module,
        sigma_min: float = 0.0,
        sigma_max: float = math.inf,
        sigma_data: float = 0.5,
    ) -> None:
        super().__init__(model)
        self.sigma_min, self.sigma_max, self.sigma_data = sigma_min, sigma_max, sigma_data

    def scales(self, sigma: torch.Tensor) -> Scales:
        """Table 1, column "Ours"."""
        data, total = self.sigma_data, sigma**2 + self.sigma_data**2
        return Scales(
            data**2 / total, sigma * data / total.sqrt(), 1 / total.sqrt(), sigma.log() / 4
        )


class VPPrecond(Preconditioned):
    """Variance preserving (Song et al. 2021): the network predicts the noise at a time of 1,000.

    Args:
        model: the network.
        beta_d: slope of beta(t).
        beta_min: beta(0).
        M: time steps.
        epsilon_t: lowest t in (0, 1] that was trained.
    """

    def __init__(
        self,
        model: nn.Module,
        beta_d: float = 19.9,
        beta_min: float = 0.1,
        M: int = 1000,
        epsilon_t: float = 1e-5,
    ) -> None:
        super().__init__(model)
        self.beta_d, self.beta_min, self.M = beta_d, beta_min, M
        self.sigma_min, self.sigma_max = self._sigma(epsilon_t), self._sigma(1.0)

    def _sigma(self, t: float) -> float:
        return math.sqrt(math.expm1(self.beta_d * t**2 / 2 + self.beta_min * t))

    def scales(self, sigma: torch.Tensor) -> Scales:
        """Table 1, column "VP"; t(sigma) solves beta_d t^2 / 2 + beta_min t = log(1 + sigma^2)."""
        root = (self.beta_min**2 + 2 * self.beta_d * (1 + sigma**2).log()).sqrt()
        t = (root - self.beta_min) / self.beta_d
        return Scales(1.0, -sigma, 1 / (1 + sigma**2).sqrt(), (self.M - 1) * t)


class VEPrecond(Preconditioned):
    """Variance exploding (Song et al. 2021): the network predicts the noise, of opposite sign.

    Args:
        model: the network.
        sigma_min: lowest noise level.
        sigma_max: highest.
    """

    def __init__(self, model: nn.Module, sigma_min: float = 0.02, sigma_max: float = 100.0) -> None:
        super().__init__(model)
        self.sigma_min, self.sigma_max = sigma_min, sigma_max

    def scales(self, sigma: torch.Tensor) -> Scales:
        """Table 1, column "VE"."""
        return Scales(1.0, sigma, 1.0, (sigma / 2).log())


class iDDPMPrecond(Preconditioned):  # noqa: N801 (the class's name in the files)
    """Improved DDPM (Nichol and Dhariwal 2021): the network knows M noise levels and no others.

    Args:
        model: the network.
        C_1: lower bound of the ratio of neighbouring alpha-bars.
        C_2: offset of the cosine schedule.
        M: noise levels.

    Attributes:
        u: (M + 1,) noise levels, descending to 0.
    """

    u: torch.Tensor

    def __init__(
        self, model: nn.Module, C_1: float = 0.001, C_2: float = 0.008, M: int = 1000
    ) -> None:
        super().__init__(model)
        self.M = M
        levels = _cosine_levels(C_1, C_2, M)
        self.register_buffer("u", torch.tensor(levels))
        self.sigma_min, self.sigma_max = levels[M - 1], levels[0]

    def scales(self, sigma: torch.Tensor) -> Scales:
        """Table 1, column "iDDPM"; the nearest known level stands for sigma."""
        nearest = (sigma.flatten()[:, None] - self.u).abs().argmin(dim=1)
        step = (self.M - 1 - nearest).to(sigma.dtype)
        return Scales(1.0, -sigma, 1 / (1 + sigma**2).sqrt(), step)


def _cosine_levels(C_1: float, C_2: float, M: int) -> list[float]:
    """u_M = 0; u_{j-1}^2 = (u_j^2 + 1) / max(alpha_{j-1} / alpha_j, C_1) - 1 (App. C.3.4)."""

    def alpha_bar(j: int) -> float:
        return math.sin(math.pi / 2 * j / (M * (C_2 + 1))) ** 2

    levels = [0.0] * (M + 1)
    for j in range(M, 0, -1):
        ratio = max(alpha_bar(j - 1) / alpha_bar(j), C_1)
        levels[j - 1] = math.sqrt((levels[j] ** 2 + 1) / ratio - 1)
    return levels
