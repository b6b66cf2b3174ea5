"""What a method finds out about a store at its first use: shown, or done beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from golddiff.cli.terminal import counting, say, waiting
from golddiff.estimators.registry import MethodSettings, check_memory, create, memory_needed

if TYPE_CHECKING:
    from golddiff.denoiser import Denoiser
    from golddiff.store.images import ImageStore

LOOKED_AT, LOOK_STEPS = 8, 4  # images and steps of a first look
LOOK_THRESHOLD = 0.13  # where few photographs are neither copied nor torn
LARGE = 4096  # values of images whose dial takes longer than a few seconds
TRIED = 1024  # images of a plain scan that compiles it: a few tasks of the kernels


def create_with_bars(
    method: str, store: ImageStore, settings: MethodSettings, seed: int = 0
) -> Denoiser:
    """As :func:`golddiff.create`; what takes seconds once a store is done now, and shown."""
    from golddiff.estimators.network_like import NetworkLike

    make_covariance(method, store, settings)
    denoiser = create(method, store, settings, seed)
    make_index(denoiser)
    if isinstance(denoiser, NetworkLike) and not denoiser.is_ready:
        with waiting("Gaussians of network-like, once for this store"):
            denoiser.fit()
    return denoiser


def make_covariance(method: str, store: ImageStore, settings: MethodSettings) -> None:
    """The covariance that a method needs, where the store has none.

    Not that of few images, which takes seconds, is not kept, and which kept masks do not need.
    """
    check_memory(method, store, settings)
    needed = memory_needed(method, settings)(store.n, store.d) and not store.factors.is_kept()
    if needed and not (method == "recommended" and store.factors.averages_few):
        with waiting("covariance") as watch:
            store.factor(progress=lambda done: watch(done, store.n))


def make_index(denoiser: Denoiser) -> None:
    """Build the index that an adaptive schedule looks into, where there is none."""
    from golddiff.supports.adaptive import FittedSchedule
    from golddiff.supports.index.image_index import open_or_build

    schedule = getattr(denoiser, "schedule", None)
    if isinstance(schedule, FittedSchedule) and schedule.indexed:
        with waiting("index, once for this store") as watch:
            schedule.index = open_or_build(
                denoiser.store, lambda what, done, total: watch(done, total)
            )


def first_look(
    store: ImageStore, out: Path, n: int, seed: int, labels: Sequence[int] | None
) -> None:
    """Draw a few images roughly, where the picture itself has to wait for the dial.

    Only of a store of large images whose dial is not measured yet.
    """
    from golddiff.estimators.dial import at_threshold, is_measured
    from golddiff.sampling import sample

    if store.d < LARGE or len(store.shape) != 3 or store.n < 2 or is_measured(store):
        return
    with counting("a first look", n * LOOK_STEPS) as on_step:
        run = sample(
            at_threshold(store, LOOK_THRESHOLD, seed), n, LOOK_STEPS, seed=seed,
            labels=None if labels is None else list(labels)[:n], trajectory=False, on_step=on_step,
        )  # fmt: skip
    run.save(out, "out")
    images = "1 rough image" if n == 1 else f"{n} rough images"
    say(f"{out}: a first look, {images}; the picture itself follows")


def take_steps(
    denoiser: Denoiser,
    sigmas: Sequence[float],
    labels: Sequence[int | None] = (None,),
    on_level: Callable[[], None] = lambda: None,
) -> None:
    """Denoise two images and one at every noise level: what that makes of a store is kept.

    Of a denoiser that weighs all images, few of them are weighed here.
    """
    import numpy as np

    from golddiff.denoiser import Estimator
    from golddiff.support import Support

    noise = np.random.default_rng(0).standard_normal((2, denoiser.store.d), np.float32)
    for label, sigma in product(labels, sigmas):
        denoiser.store.count_of(label)
        for x in (noise * np.float32(sigma), noise[:1] * np.float32(sigma)):
            if isinstance(denoiser, Estimator):  # a full scan may take minutes
                few = Support(denoiser.store.rows_of(label)[:TRIED])
                denoiser.denoise_over(x, sigma, few)
            else:
                denoiser.denoise(x, sigma, label)
        on_level()
