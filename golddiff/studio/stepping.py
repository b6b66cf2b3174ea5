"""The samplers one step at a time, so that pictures can be shown while they denoise.

The same numbers as :func:`golddiff.sampling.sample`, which runs to the end before it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from golddiff.noise import ddim_sigmas, edm_sigmas
from golddiff.sampling import heun_step, initial_noise, noise_levels

SAMPLERS = {"DDIM": "ddim", "Heun": "heun"}

Denoise = Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class Frame:
    """One step of one method.

    Attributes:
        sigma: noise level.
        x: (n, *shape) the noisy images that the method saw, x0 + sigma * eps.
        x0: (n, *shape) what it made of them.
    """

    sigma: float
    x: torch.Tensor
    x0: torch.Tensor


def levels(steps: int, sampler: str, start: float | None) -> list[float]:
    """Noise levels of a run, descending.

    Args:
        steps: number of levels wanted.
        sampler: "ddim" or "heun".
        start: noise added to an image that the run starts from; None starts from pure noise.
    """
    if start is None:
        return noise_levels(steps, sampler)
    if sampler == "heun":
        return edm_sigmas(steps, sigma_max=max(start, 0.0021))
    # DDIM's levels, at evenly spaced timesteps from the one that holds this much noise.
    below = [sigma for sigma in ddim_sigmas(1000) if sigma < start]
    count = min(steps - 1, len(below))
    return [start, *(below[(i + 1) * len(below) // count - 1] for i in range(count))]


def starting_point(
    n: int, shape: Sequence[int], seed: int, sigmas: Sequence[float], sampler: str,
    image: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The noisy images (n, *shape) that every method starts from, in sigma coordinates.

    Args:
        n: how many.
        shape: of one image.
        seed: of the noise.
        sigmas: levels of the run; the first one's noise is added.
        sampler: "ddim" or "heun".
        image: (*shape) to add the noise to; None: to nothing, as the sampler does it.
    """
    noise = initial_noise(n, shape, seed)
    if image is not None:
        return image[None] + sigmas[0] * noise
    # VP's start has unit variance, the little that is left of the image included.
    spread: float = sigmas[0] if sampler == "heun" else (1 + sigmas[0] ** 2) ** 0.5
    return noise * spread


def frames(
    denoise: Denoise, x: torch.Tensor, sigmas: Sequence[float], sampler: str, clip: bool
) -> Iterator[Frame]:
    """Denoise step by step.

    Args:
        denoise: ``D(x, sigma)``.
        x: (n, *shape), from :func:`starting_point`.
        sigmas: levels, descending.
        sampler: "ddim" or "heun".
        clip: clip predictions to [-1, 1]: right for pixels, not for latents.
    """
    step = _heun_step if sampler == "heun" else _ddim_step
    for sigma, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        x0, proposal = step(denoise, x, sigma, following, clip)
        yield Frame(sigma, x, x0)
        x = proposal


def _ddim_step(
    denoise: Denoise, x: torch.Tensor, sigma: float, following: float, clip: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    x0 = denoise(x, sigma)
    eps = (x - x0) / sigma  # of the prediction before it is clipped, as in diffusers
    if clip:
        x0 = x0.clamp(-1, 1)
    return x0, x0 + following * eps


def _heun_step(
    denoise: Denoise, x: torch.Tensor, sigma: float, following: float, clip: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    return heun_step(denoise, x, sigma, following)
