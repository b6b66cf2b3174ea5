"""EDM's four preconditioners as arguments of an Oracle.

Each function returns ``parameterisation``, ``sigma_range``, and ``schedule`` or ``sigma_data``.
Karras et al. 2022, Eq. 7 and Table 1, row "Network and preconditioning".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def edm(
    sigma_min: float = 0.0, sigma_max: float = math.inf, sigma_data: float = 0.5
) -> dict[str, Any]:
    """EDM (column "Ours"); ``sigma_data`` is the standard deviation of the training images."""
    return {
        "parameterisation": "edm", "sigma_data": sigma_data, "sigma_range": (sigma_min, sigma_max)
    }  # fmt: skip


def vp(
    beta_d: float = 19.9, beta_min: float = 0.1, M: int = 1000, epsilon_t: float = 1e-5
) -> dict[str, Any]:
    """Variance preserving (Song et al. 2021): predicts the noise at a time t (M - 1).

    beta(t) = beta_min + beta_d t; ``epsilon_t`` is the lowest trained t in (0, 1].
    """

    def level(t: float) -> float:
        return math.sqrt(math.expm1(beta_d * t**2 / 2 + beta_min * t))

    ends = level(epsilon_t), level(1.0)
    schedule = partial(_vp_schedule, beta_d, beta_min, M - 1)
    return {"parameterisation": "eps", "schedule": schedule, "sigma_range": ends}


def _vp_schedule(
    beta_d: float, beta_min: float, last: int, sigma: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    # t(sigma) solves beta_d t^2 / 2 + beta_min t = log(1 + sigma^2).
    root = (beta_min**2 + 2 * beta_d * (1 + sigma**2).log()).sqrt()
    return (1 + sigma**2).rsqrt(), last * (root - beta_min) / beta_d


def ve(sigma_min: float = 0.02, sigma_max: float = 100.0) -> dict[str, Any]:
    """Variance exploding (Song et al. 2021): predicts the noise with the opposite sign."""
    return {
        "parameterisation": _ve_x0, "schedule": _ve_schedule, "sigma_range": (sigma_min, sigma_max)
    }  # fmt: skip


def _ve_x0(x: torch.Tensor, sigma: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    return x + sigma * out


def _ve_schedule(sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones_like(sigma), (sigma / 2).log()


def iddpm(C_1: float = 0.001, C_2: float = 0.008, M: int = 1000) -> dict[str, Any]:
    """Improved DDPM (Nichol and Dhariwal 2021): trained on M discrete noise levels.

    C_1 bounds the ratio of neighbouring alpha-bars; C_2 is the offset of the cosine schedule.
    """
    levels = iddpm_levels(C_1, C_2, M)
    known = torch.tensor(levels[:M], dtype=torch.float64)  # the last level, 0, has no timestep
    ends, schedule = (levels[M - 1], levels[0]), partial(_iddpm_schedule, known)
    return {"parameterisation": "eps", "schedule": schedule, "sigma_range": ends}


def _iddpm_schedule(known: torch.Tensor, sigma: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    nearest = (sigma[:, None] - known).abs().argmin(dim=1)
    return (1 + sigma**2).rsqrt(), (len(known) - 1 - nearest).to(sigma.dtype)


def iddpm_levels(C_1: float, C_2: float, M: int) -> list[float]:
    """u_M = 0; u_{j-1}^2 = (u_j^2 + 1) / max(alpha_{j-1} / alpha_j, C_1) - 1 (App. C.3.4)."""

    def alpha_bar(j: int) -> float:
        return math.sin(math.pi / 2 * j / (M * (C_2 + 1))) ** 2

    levels = [0.0] * (M + 1)
    for j in range(M, 0, -1):
        ratio = max(alpha_bar(j - 1) / alpha_bar(j), C_1)
        levels[j - 1] = math.sqrt((levels[j] ** 2 + 1) / ratio - 1)
    return levels


PRECONDITIONINGS: dict[str, Callable[..., dict[str, Any]]] = {
    "EDMPrecond": edm,
    "VPPrecond": vp,
    "VEPrecond": ve,
    "iDDPMPrecond": iddpm,
}
