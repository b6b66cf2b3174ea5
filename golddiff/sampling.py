"""Samplers: DDIM as the paper runs it, and EDM's deterministic Heun."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch

from golddiff.denoiser import Denoiser, Labels, Sigma
from golddiff.errors import ArgumentError
from golddiff.index.nearest import Novelty, novelty
from golddiff.noise import ddim_scheduler, ddim_sigmas, edm_sigmas, sigma_of_alpha
from golddiff.store.images import ImageStore

if TYPE_CHECKING:
    from golddiff.attribution import Attribution
    from golddiff.recording import Recorder, Subsets

OnStep = Callable[[int], None]


@dataclass(frozen=True)
class Samples:
    """What :func:`sample` returns.

    Attributes:
        images: (n, *shape) float32; pixels in [-1, 1].
        x_init: (n, *shape) float32, the unit normal noise that the run started from.
        sigmas: noise level of each step, descending.
        trajectory: (steps, n, *shape) predicted x0 at each step, or None.
        attribution: where each image of the last step comes from, n of them, or None.
        subsets: how many images each denoiser call weighed, or None.
        share: of the training images that was seen at every step; below 1 where shards of a store
            were missing.
        store: the training set, or None.
    """

    images: torch.Tensor
    x_init: torch.Tensor
    sigmas: list[float]
    trajectory: torch.Tensor | None
    attribution: list[Attribution] | None = None
    subsets: Subsets | None = None
    share: float = 1.0
    store: Space | None = field(default=None, repr=False)

    @cached_property
    def novelty(self) -> Novelty:
        """How new each image is, and its nearest training image; found when first asked for.

        Raises:
            ArgumentError: as :func:`golddiff.novelty`; no training set.
        """
        if not isinstance(self.store, ImageStore):
            raise ArgumentError("novelty: the denoiser has no training set to compare with")
        return novelty(self.images, self.store)


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
        """The training images, or what else tells the shape of an image."""
        ...

    def __call__(self, x: torch.Tensor, sigma: Sigma, labels: Labels = None) -> torch.Tensor:
        """E[x0 | x], as :meth:`golddiff.denoiser.Denoiser.__call__`."""
        ...


def initial_noise(n: int, shape: Sequence[int], seed: int) -> torch.Tensor:
    """Unit normal noise (n, *shape): the same for a seed whatever else differs."""
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn((n, *shape), generator=generator)


def noise_levels(steps: int, sampler: str) -> list[float]:
    """The sigma of each step of a sampler, descending."""
    return edm_sigmas(steps) if sampler == "heun" else ddim_sigmas(steps)


def check_settings(n: int, steps: int, sampler: str, seed: int, batch_size: int = 64) -> None:
    """Raise where :func:`sample` would, before a store is opened or built for it.

    Raises:
        ArgumentError: an argument outside its range, an unknown sampler.
    """
    for name, value in (("n", n), ("steps", steps), ("batch_size", batch_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ArgumentError(f"{name}: got {value!r}, expected an integer of 1 or more")
    if steps > 1000:
        raise ArgumentError(f"steps: got {steps}, expected at most 1000")
    if sampler not in SAMPLERS:
        raise ArgumentError(f"sampler: got {sampler!r}, expected one of {', '.join(SAMPLERS)}")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ArgumentError(f"seed: got {seed!r}, expected an integer from 0 to 2**64 - 1")


def sample(
    denoiser: Denoises,
    n: int,
    steps: int = 10,
    sampler: str = "ddim",
    seed: int = 0,
    labels: Labels = None,
    *,
    batch_size: int = 64,
    trajectory: bool = True,
    on_step: OnStep = lambda images: None,
    attribution: bool = False,
) -> Samples:
    """Generate images from noise.

    Args:
        denoiser: any ``D(x, sigma, labels)`` with a ``store``, which gives the images' shape.
        n: number of images.
        steps: denoising steps, 1 to 1000.
        sampler: "ddim", the paper's, or "heun", EDM's (2 * steps - 1 denoiser calls).
        seed: of the starting noise; the images do not depend on the batch size.
        labels: class index for all images, or one for each.
        batch_size: images denoised together.
        trajectory: keep the predicted x0 of every step.
        on_step: called after each step of each batch with the number of images in it.
        attribution: also find out where the images come from, and how many training images each
            step weighed; takes a few times longer.

    Raises:
        ArgumentError: an argument outside its range, an unknown sampler; a denoiser without a
            store; attribution of a method that weighs no training images.
    """
    check_settings(n, steps, sampler, seed, batch_size)
    if not callable(denoiser) or not hasattr(denoiser, "store"):
        raise ArgumentError(
            f"denoiser: got {type(denoiser).__name__}, expected a call D(x, sigma, labels) with an "
            "attribute 'store', the ImageStore that gives the images' shape"
        )
    if attribution and not isinstance(denoiser, Denoiser):
        raise ArgumentError(f"attribution: {type(denoiser).__name__} names no training images")
    classes = None if labels is None else torch.as_tensor(labels)
    if classes is not None and classes.ndim == 1 and len(classes) not in (1, n):
        raise ArgumentError(f"labels: got {len(classes)} of them for {n} images")
    x_init = initial_noise(n, denoiser.store.shape, seed)
    recorders: list[Recorder] = []
    seen = [1.0]

    def stepped(images: int) -> None:
        seen.append(getattr(denoiser.store, "share", 1.0))
        on_step(images)

    def watched() -> Denoises:
        if not attribution:
            return denoiser
        from golddiff.recording import Recorder  # its kernels import slowly

        assert isinstance(denoiser, Denoiser)
        recorders.append(Recorder(denoiser))
        return recorders[-1]

    runs = [
        SAMPLERS[sampler](
            watched(),
            x_init[i : i + batch_size],
            steps,
            classes
            if classes is None or classes.ndim == 0 or len(classes) == 1
            else classes[i : i + batch_size],
            trajectory,
            stepped,
        )
        for i in range(0, n, batch_size)
    ]
    return Samples(
        torch.cat([run.images for run in runs]),
        x_init,
        runs[0].sigmas,
        torch.cat([run.trajectory for run in runs if run.trajectory is not None], dim=1)
        if trajectory
        else None,
        [a for recorder in recorders for a in recorder.attributions()] if attribution else None,
        _joined(recorders) if attribution else None,
        min(seen),
        denoiser.store,
    )


def _joined(recorders: list[Recorder]) -> Subsets:
    from golddiff.recording import Subsets

    return Subsets.joined([recorder.subsets() for recorder in recorders])


def _ddim(
    denoiser: Denoises,
    x_init: torch.Tensor,
    steps: int,
    labels: torch.Tensor | None,
    trajectory: bool,
    on_step: OnStep,
) -> Samples:
    """Song et al. 2021, eta 0; the result is the last predicted x0."""
    scheduler = ddim_scheduler(steps, clip=denoiser.store.is_pixels)
    latents, predictions, sigmas = x_init, [], []
    x0 = x_init
    for t in scheduler.timesteps:
        alpha = float(scheduler.alphas_cumprod[t])
        sigmas.append(sigma_of_alpha(alpha))
        x0 = denoiser(latents / alpha**0.5, sigmas[-1], labels)
        step = scheduler.step(x0, t, latents)
        latents, x0 = step.prev_sample, step.pred_original_sample
        if trajectory:
            predictions.append(x0)
        on_step(len(x0))
    return Samples(x0, x_init, sigmas, torch.stack(predictions) if trajectory else None)


def _heun(
    denoiser: Denoises,
    x_init: torch.Tensor,
    steps: int,
    labels: torch.Tensor | None,
    trajectory: bool,
    on_step: OnStep,
) -> Samples:
    """Karras et al. 2022, Algorithm 1: sigma 80 to 0.002, then one Euler step to 0."""
    sigmas = edm_sigmas(steps)
    x, predictions = x_init * sigmas[0], []
    for sigma, following in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
        x0, x = heun_step(lambda x, level: denoiser(x, level, labels), x, sigma, following)
        if trajectory:
            predictions.append(x0)
        on_step(len(x0))
    return Samples(x, x_init, sigmas, torch.stack(predictions) if trajectory else None)


def heun_step(
    denoise: Callable[[torch.Tensor, float], torch.Tensor],
    x: torch.Tensor,
    sigma: float,
    following: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """One step of the same from ``sigma`` to ``following``: (predicted x0, the next x)."""
    x0 = denoise(x, sigma)
    slope = (x - x0) / sigma
    proposal = x + (following - sigma) * slope
    if following > 0:
        correction = (proposal - denoise(proposal, following)) / following
        proposal = x + (following - sigma) * (slope + correction) / 2
    return x0, proposal


SAMPLERS = {"ddim": _ddim, "heun": _heun}
