"""Samplers as one generator of steps: DDIM as the paper runs it, and EDM's deterministic Heun.

Whatever shows, records or measures a run iterates over :func:`steps`; :func:`golddiff.sample` too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Protocol

import torch

from golddiff.noise import EDM_LEAST, Labels, Sigma, ddim_sigmas, edm_sigmas
from golddiff.system.errors import ArgumentError
from golddiff.system.numbers import check_count, check_seed

MOST_STEPS = 1000


class Space(Protocol):
    """What a sampler reads of a denoiser's store."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""
        ...

    @property
    def is_pixels(self) -> bool:
        """Whether values lie in [-1, 1], so that predictions are clipped to it."""
        ...


class Denoises(Protocol):
    """What a sampler needs: a denoiser, or something that looks like one."""

    @property
    def store(self) -> Space:
        """The training images, or what else has the shape of an image."""
        ...

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x], as :meth:`golddiff.denoiser.Denoiser.__call__`."""
        ...


@dataclass(frozen=True)
class State:
    """One step of a run.

    Attributes:
        sigma: noise level.
        x: (n, *shape) the noisy images that the denoiser saw, x0 + sigma * eps.
        x0: (n, *shape) the images that it predicts from them; the last step's are the result.
    """

    sigma: float
    x: torch.Tensor
    x0: torch.Tensor


Denoise = Callable[[torch.Tensor, float], torch.Tensor]
Stepper = Callable[[Denoise, torch.Tensor, Sequence[float], bool], Iterator[State]]


def _ddim(
    denoise: Denoise, x_init: torch.Tensor, sigmas: Sequence[float], clip: bool
) -> Iterator[State]:
    """Song et al. 2021, eta 0, of x_t = x / sqrt(1 + sigma^2), in diffusers' order of rounding."""
    squares = torch.tensor([*sigmas, 0.0], dtype=torch.float64, device="cpu") ** 2
    alphas = (1 / (1 + squares)).float()
    # 1 - alpha, which has no digits left in float32 where sigma is small.
    betas = torch.where(alphas < 0.5, 1 - alphas, (squares / (1 + squares)).float())
    x_t = x_init
    for (sigma, alpha, beta), (_, next_alpha, next_beta) in pairwise(
        zip([*sigmas, 0.0], alphas, betas, strict=True)
    ):
        x = x_t / float(alpha) ** 0.5
        x0 = denoise(x, sigma)
        eps = (x_t - alpha**0.5 * x0) / beta**0.5  # of the prediction before it is clipped
        x0 = x0.clamp(-1, 1) if clip else x0
        yield State(sigma, x, x0)
        x_t = next_alpha**0.5 * x0 + next_beta**0.5 * eps


def _heun(
    denoise: Denoise, x_init: torch.Tensor, sigmas: Sequence[float], clip: bool
) -> Iterator[State]:
    """Karras et al. 2022, Algorithm 1, whose last step goes to the prediction. Never clips."""
    x = x_init * sigmas[0]
    for sigma, following in zip_longest(sigmas, sigmas[1:]):
        x0 = denoise(x, sigma)
        yield State(sigma, x, x0)
        if following is not None:
            slope = (x - x0) / sigma
            proposal = x + (following - sigma) * slope
            correction = (proposal - denoise(proposal, following)) / following
            x = x + (following - sigma) * (slope + correction) / 2


@dataclass(frozen=True)
class Sampler:
    """One sampler.

    Attributes:
        levels: its noise levels for so many steps, descending.
        below: so many noise levels from a given one on, which is the first of them.
        spread: x / x_init at a noise level: what unit normal noise is scaled by.
        run: its steps.
    """

    levels: Callable[[int], list[float]]
    below: Callable[[float, int], list[float]]
    spread: Callable[[float], float]
    run: Stepper


def _ddim_below(sigma: float, steps: int) -> list[float]:
    """DDIM's levels at evenly spaced timesteps from the one that holds this much noise."""
    below = [level for level in ddim_sigmas(MOST_STEPS) if level < sigma]
    count = min(steps - 1, len(below))
    return [sigma, *(below[(i + 1) * len(below) // count - 1] for i in range(count))]


def _heun_below(sigma: float, steps: int) -> list[float]:
    """EDM's levels from this one on, itself as it is; below their last it alone."""
    return [sigma, *(edm_sigmas(steps, sigma)[1:] if sigma > EDM_LEAST else [])]


SAMPLERS = {
    # DDIM's start has unit variance, the little that is left of the image included.
    "ddim": Sampler(ddim_sigmas, _ddim_below, lambda sigma: (1 + sigma**2) ** 0.5, _ddim),
    "heun": Sampler(edm_sigmas, _heun_below, lambda sigma: sigma, _heun),
}


def steps(
    denoiser: Denoises,
    x_init: torch.Tensor,
    sigmas: Iterable[float],
    sampler: str = "ddim",
    labels: Labels = None,
) -> Iterator[State]:
    """Denoise step by step: one :class:`State` a noise level.

    For example, the pictures of a run as they come::

        x_init = initial_noise(4, store.shape, seed=0)
        for state in steps(denoiser, x_init, noise_levels(10, "ddim")):
            show(state.x0)

    Args:
        denoiser: any ``D(x, sigma, labels)`` with a ``store``, whose ``is_pixels`` says whether
            DDIM clips predictions to [-1, 1].
        x_init: (n, *shape) unit normal noise, or what :func:`noised` made of an image.
        sigmas: noise levels, descending and positive.
        sampler: "ddim", the paper's, or "heun", EDM's (two calls a step but for the last).
        labels: class index for all images, or one for each.

    Raises:
        ArgumentError: no noise levels, or some that do not fall; an unknown sampler.
    """
    levels, chosen = checked_levels(sigmas), sampler_named(sampler)

    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        return denoiser(x, sigma, labels)

    return chosen.run(denoise, x_init, levels, denoiser.store.is_pixels)


def initial_noise(n: int, shape: Sequence[int], seed: int) -> torch.Tensor:
    """Unit normal noise (n, *shape): the same for a seed whatever else differs."""
    return normal((n, *shape), torch.Generator("cpu").manual_seed(seed))


def normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Unit normal float32 on the processor, whatever torch's default type and device are."""
    where = generator.device
    return torch.randn(shape, generator=generator, dtype=torch.float32, device=where).cpu()


def noised(
    image: torch.Tensor, sigma: float, noise: torch.Tensor, sampler: str = "ddim"
) -> torch.Tensor:
    """Start a run from an image: the ``x_init`` whose first state has x = image + sigma * noise.

    An image (*shape), or (n, *shape) of them; unit normal noise (n, *shape).
    """
    return (image + sigma * noise) / sampler_named(sampler).spread(sigma)


def noise_levels(steps: int, sampler: str, start: float | None = None) -> list[float]:
    """The sigma of each step of a sampler, descending.

    Args:
        steps: how many; fewer where a start leaves no room for as many.
        sampler: "ddim" or "heun".
        start: the first of them, for a run that starts from an image; None: pure noise.

    Raises:
        ArgumentError: an unknown sampler.
    """
    chosen = sampler_named(sampler)
    return chosen.levels(steps) if start is None else chosen.below(start, steps)


def level_of_strength(strength: float) -> float:
    """The noise level of a run from an image, by the share of DDIM's steps that it goes back."""
    if not 0 < strength <= 1:
        raise ArgumentError(f"strength: got {strength}, expected above 0 to 1")
    return ddim_sigmas(MOST_STEPS)[MOST_STEPS - max(1, round(strength * MOST_STEPS))]


def checked_levels(sigmas: Iterable[float]) -> list[float]:
    """Noise levels as floats."""
    try:
        levels = [float(sigma) for sigma in sigmas]
    except (TypeError, ValueError):
        raise ArgumentError(f"sigmas: got {sigmas!r}, expected numbers") from None
    falling = all(a > b for a, b in pairwise(levels))
    if not levels or not falling or not levels[-1] > 0 or not levels[0] < float("inf"):
        raise ArgumentError(f"sigmas: got {levels}, expected positive noise levels that fall")
    return levels


def sampler_named(name: str, argument: str = "sampler") -> Sampler:
    """The sampler of a name; raises where there is none such."""
    if name not in SAMPLERS:
        raise ArgumentError(f"{argument}: got {name!r}, expected one of {', '.join(SAMPLERS)}")
    return SAMPLERS[name]


def check_settings(n: int, steps: int, sampler: str, seed: int, batch_size: int = 64) -> None:
    """Raise where :func:`golddiff.sample` would, before a store is opened or built for it."""
    for name, value in (("n", n), ("steps", steps), ("batch_size", batch_size)):
        check_count(name, value)
    if steps > MOST_STEPS:
        raise ArgumentError(f"steps: got {steps}, expected at most {MOST_STEPS}")
    sampler_named(sampler)
    check_seed(seed)
