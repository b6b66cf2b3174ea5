"""Computations that a method does once per store, with progress bars or ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

import golddiff
from golddiff.cli.terminal import waiting
from golddiff.estimators.registry import MethodSettings, check_memory, create, memory_needed

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser

WARM_UP_IMAGES = 1024  # images of the short scan that compiles the kernels: a few tasks


def create_with_bars(
    method: str, store: golddiff.ImageStore, settings: MethodSettings, seed: int = 0
) -> Denoiser:
    """Like :func:`golddiff.create`, with progress bars for the work done once per store."""
    from golddiff.estimators.network_like import NetworkLike

    make_covariance(method, store, settings)
    denoiser = create(method, store, settings, seed)
    make_index(denoiser)
    if isinstance(denoiser, NetworkLike) and not denoiser.is_ready:
        with waiting("fitting network-like, once for this store"):
            denoiser.fit()
    return denoiser


def make_covariance(method: str, store: golddiff.ImageStore, settings: MethodSettings) -> None:
    """Compute the covariance if the method needs it and the store does not have it.

    Method "recommended" skips it for few images: it takes seconds, is not saved, and is not needed
    if the masks are saved.
    """
    check_memory(method, store, settings)
    needed = memory_needed(method, settings)(store.n, store.d) and not store.factors.is_saved()
    if needed and not (method == "recommended" and store.factors.averaged_from_sample):
        from golddiff.store.statistics import factor_rows  # imports torch

        images = len(factor_rows(store.rows_of(None), store.d))  # of large images, a sample
        with waiting("computing the covariance") as watch:
            store.factor(progress=lambda done: watch(done, images))


def make_index(denoiser: Denoiser) -> None:
    """Open or build the index if the denoiser's schedule is adaptive and uses one."""
    from golddiff.supports.adaptive import FittedSchedule
    from golddiff.supports.index.image_index import open_or_build

    schedule = getattr(denoiser, "schedule", None)
    if isinstance(schedule, FittedSchedule) and schedule.indexed:
        with waiting("building the index, once for this store") as watch:
            schedule.index = open_or_build(denoiser.store, watch)


def take_steps(
    denoiser: Denoiser,
    sigmas: Sequence[float],
    labels: Sequence[int | None] = (None,),
    on_level: Callable[[], None] = lambda: None,
) -> None:
    """Denoise a batch of two images and of one at every noise level, to fill the store's caches.

    A method that weighs all images, or a golden subset, weighs only the first ``WARM_UP_IMAGES``.
    """
    from golddiff.store.posteriors import as_support

    noise = np.random.default_rng(0).standard_normal((2, denoiser.store.d), np.float32)
    for label, sigma in product(labels, sigmas):
        for x in (noise * np.float32(sigma), noise[:1] * np.float32(sigma)):
            if denoiser.weighs_images and not getattr(denoiser, "estimates", False):
                # Weighing all images, or a share of them, may take minutes.
                estimator, supports = denoiser.estimator_supports(x, sigma, label)
                few = {id(s): as_support(s).at(slice(WARM_UP_IMAGES)) for s in supports}
                estimator.denoise_over(x, sigma, [few[id(s)] for s in supports])
            else:
                denoiser.denoise(x, sigma, label)
        on_level()
