"""Samplers as generators of steps: DDIM as the paper runs it, and EDM's deterministic Heun.

:func:`golddiff.sample`, and code that shows, records or measures a run, iterate over :func:`steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Protocol

import torch

from golddiff.noise import EDM_SIGMA_MIN, SAME_LEVEL, Labels, Sigma, ddim_sigmas, edm_sigmas
from golddiff.system.arguments import check_batch, check_positive
from golddiff.system.errors import ArgumentError
from golddiff.system.memory import require_memory
from golddiff.system.numbers import check_count, check_seed, check_shape

MAX_STEPS = 1000


class Space(Protocol):
    """The attributes of a store that a sampler reads."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one image."""

    @property
    def is_pixels(self) -> bool:
        """Whether values lie in [-1, 1]; DDIM then clips predictions to that range."""


class Denoises(Protocol):
    """The interface of a denoiser that a sampler needs."""

    @property
    def store(self) -> Space:
        """The training set, or another object that has the shape of an image."""

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x]; see :meth:`golddiff.denoiser.Denoiser.__call__`."""


def check_denoises(denoiser: object) -> None:
    """Raise ArgumentError unless the object has the interface of a denoiser."""
    store = getattr(denoiser, "store", None)
    if not callable(denoiser) or not (hasattr(store, "shape") and hasattr(store, "is_pixels")):
        raise ArgumentError(
            f"denoiser: got {type(denoiser).__name__}, expected a call D(x, sigma, labels) with an "
            "attribute 'store', an ImageStore or another object with shape and is_pixels"
        )


def check_output(name: str, x0: object, x: torch.Tensor) -> None:
    """Raise ArgumentError unless a denoiser's output is a tensor of the shape of its input."""
    if not isinstance(x0, torch.Tensor) or x0.shape != x.shape:
        got = f"{type(x0).__name__} {tuple(getattr(x0, 'shape', ()))}"
        raise ArgumentError(f"{name}: returned {got}, expected Tensor {tuple(x.shape)}")


@dataclass(frozen=True, eq=False)
class State:
    """One step of a run.

    Attributes:
        sigma: noise level.
        x: (n, *shape) noisy images x0 + sigma * eps, the input of the denoiser.
        x0: (n, *shape) images that the denoiser predicts; at the last step, the result.
    """

    sigma: float
    x: torch.Tensor
    x0: torch.Tensor


Denoise = Callable[[torch.Tensor, float], torch.Tensor]
Stepper = Callable[[Denoise, torch.Tensor, Sequence[float], bool], Iterator[State]]


def _ddim(
    denoise: Denoise, x_init: torch.Tensor, sigmas: Sequence[float], clip: bool
) -> Iterator[State]:
    """DDIM (Song et al. 2021), eta 0, on x_t = x / sqrt(1 + sigma^2); rounds as diffusers does."""
    squares = torch.tensor([*sigmas, 0.0], dtype=torch.float64, device="cpu") ** 2
    alphas = (1 / (1 + squares)).float()
    # 1 - alpha; for small sigma the float32 difference would lose all digits.
    betas = torch.where(alphas < 0.5, 1 - alphas, (squares / (1 + squares)).float())
    x_t = x_init
    for (sigma, alpha, beta), (_, next_alpha, next_beta) in pairwise(
        zip([*sigmas, 0.0], alphas, betas, strict=True)
    ):
        x = x_t / float(alpha) ** 0.5
        x0 = denoise(x, sigma)
        eps = (x_t - alpha**0.5 * x0) / beta**0.5  # from the unclipped prediction
        x0 = x0.clamp(-1, 1) if clip else x0
        x_t = next_alpha**0.5 * x0 + next_beta**0.5 * eps
        yield State(sigma, x, x0)


def _heun(
    denoise: Denoise, x_init: torch.Tensor, sigmas: Sequence[float], clip: bool
) -> Iterator[State]:
    """EDM's Heun sampler (Karras et al. 2022, Algorithm 1); the last step is Euler. Never clips."""
    x = x_init * sigmas[0]
    for sigma, following in zip_longest(sigmas, sigmas[1:]):
        x0 = denoise(x, sigma)
        slope = (x - x0) / sigma
        yield State(sigma, x.clone(), x0)
        if following is not None:
            proposal = x + (following - sigma) * slope
            correction = (proposal - denoise(proposal, following)) / following
            x = x + (following - sigma) * (slope + correction) / 2


@dataclass(frozen=True)
class Sampler:
    """A sampler.

    Attributes:
        levels: maps a number of steps to descending noise levels.
        below: maps a first noise level and a number of steps to descending noise levels.
        spread: maps a noise level to x / x_init, the scale of unit normal starting noise.
        run: the generator of steps.
    """

    levels: Callable[[int], list[float]]
    below: Callable[[float, int], list[float]]
    spread: Callable[[float], float]
    run: Stepper


def _ddim_below(sigma: float, steps: int) -> list[float]:
    """Sigma, then DDIM's levels at evenly spaced timesteps below it."""
    below = [level for level in ddim_sigmas(MAX_STEPS) if level < sigma]
    count = min(steps - 1, len(below))
    return [sigma, *(below[(i + 1) * len(below) // count - 1] for i in range(count))]


def _heun_below(sigma: float, steps: int) -> list[float]:
    """EDM's levels from sigma on; only sigma if it is at most EDM's last level."""
    is_last = sigma <= EDM_SIGMA_MIN * (1 + SAME_LEVEL)
    return [sigma, *([] if is_last else edm_sigmas(steps, sigma)[1:])]


SAMPLERS = {
    # DDIM starts from x_t of unit variance, which includes the remaining image signal.
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
    """Denoise step by step; yields one :class:`State` per noise level.

    For example, to show the images of a run at each step::

        x_init = initial_noise(4, store.shape, seed=0)
        for state in steps(denoiser, x_init, noise_levels(10, "ddim")):
            show(state.x0)

    Args:
        denoiser: any ``D(x, sigma, labels)`` with a ``store``; if ``store.is_pixels``, DDIM clips
            predictions to [-1, 1].
        x_init: (n, *shape) unit normal noise, or the result of :func:`noised`.
        sigmas: noise levels, descending and positive.
        sampler: "ddim", the paper's, or "heun", EDM's (two calls per step, one in the last).
        labels: class index for all images, or one per image.

    Raises:
        ArgumentError: not a denoiser, or its output has another shape than its input; x_init has
            another shape or no float type; sigmas are empty, not positive or not descending; the
            sampler is unknown.
    """
    check_denoises(denoiser)
    check_batch("x_init", x_init, denoiser.store.shape, "store")
    levels, chosen = checked_levels(sigmas), sampler_named(sampler)

    def denoise(x: torch.Tensor, sigma: float) -> torch.Tensor:
        x0 = denoiser(x, sigma, labels)
        check_output("denoiser", x0, x)
        return x0.to(x.device, torch.promote_types(x.dtype, torch.float32))

    return chosen.run(denoise, x_init, levels, denoiser.store.is_pixels)


def initial_noise(n: int, shape: Sequence[int], seed: int) -> torch.Tensor:
    """Unit normal noise (n, *shape), which depends on the seed alone.

    Raises:
        ArgumentError: n or a side of the shape is below 1, the seed is not 0 to 2**64 - 1, or too
            little memory is free.
    """
    sizes = check_count("n", n), *check_shape("shape", shape)
    require_memory(4 * math.prod(sizes), f"noise for n = {n:,}", "ask for less at a time")
    return normal(sizes, torch.Generator("cpu").manual_seed(check_seed(seed)))


def normal(shape: Sequence[int], generator: torch.Generator) -> torch.Tensor:
    """Unit normal float32 noise on the CPU, regardless of torch's default dtype and device."""
    device = generator.device
    return torch.randn(shape, generator=generator, dtype=torch.float32, device=device).cpu()


def noised(
    image: torch.Tensor, sigma: float, noise: torch.Tensor, sampler: str = "ddim"
) -> torch.Tensor:
    """The ``x_init`` of a run whose first state has x = image + sigma * noise.

    Takes images (*shape) or (n, *shape), and unit normal noise (n, *shape).
    """
    return (image + sigma * noise) / sampler_named(sampler).spread(sigma)


def noise_levels(steps: int, sampler: str, start: float | None = None) -> list[float]:
    """The sigma of each step of a sampler, descending.

    Args:
        steps: number of steps; the result has fewer if there are too few levels below ``start``.
        sampler: "ddim" or "heun".
        start: first noise level, for a run that starts from an image; None: pure noise.

    Raises:
        ArgumentError: steps are not 1 to 1000; the sampler is unknown; start is not above 0.
    """
    chosen, steps = check_steps(steps, sampler), int(steps)
    if start is None:
        return chosen.levels(steps)
    return chosen.below(check_positive("start", start), steps)


def level_of_strength(strength: float) -> float:
    """The starting noise level of a run from an image that covers this share of DDIM's steps."""
    if not 0 < strength <= 1:
        raise ArgumentError(f"strength: got {strength}, expected above 0 to 1")
    return ddim_sigmas(MAX_STEPS)[MAX_STEPS - max(1, round(strength * MAX_STEPS))]


def checked_levels(sigmas: Iterable[float]) -> list[float]:
    """Noise levels as floats, checked to be positive and descending."""
    try:
        if isinstance(sigmas, str | bytes):  # whose items could be digits
            raise TypeError
        levels = [float(sigma) for sigma in sigmas]
    except (TypeError, ValueError):
        raise ArgumentError(f"sigmas: got {sigmas!r}, expected numbers") from None
    falling = all(a > b for a, b in pairwise(levels))
    if not levels or not falling or not levels[-1] > 0 or not levels[0] < float("inf"):
        raise ArgumentError(f"sigmas: got {levels}, expected positive noise levels that fall")
    return levels


def sampler_named(name: str, argument: str = "sampler") -> Sampler:
    """The sampler of this name; raises ArgumentError if it is unknown."""
    if not isinstance(name, str) or name not in SAMPLERS:
        raise ArgumentError(f"{argument}: got {name!r}, expected one of {', '.join(SAMPLERS)}")
    return SAMPLERS[name]


def check_settings(
    n: int, steps: int, sampler: str, seed: int, batch_size: int = 64
) -> tuple[int, int, int, int]:
    """Check arguments of :func:`golddiff.sample`; n, steps, seed and batch size as Python's ints.

    Needs no store, so that bad arguments are found before one is opened or built.
    """
    n, batch_size = check_count("n", n), check_count("batch_size", batch_size)
    check_steps(steps, sampler)
    return n, int(steps), check_seed(seed), batch_size


def check_steps(steps: int, sampler: str) -> Sampler:
    """The sampler of this name; raises unless it can run that number of steps."""
    if check_count("steps", steps) > MAX_STEPS:
        raise ArgumentError(f"steps: got {steps}, expected at most {MAX_STEPS}")
    return sampler_named(sampler)
