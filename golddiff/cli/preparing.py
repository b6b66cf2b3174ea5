"""What a method finds out about a store, or compiles, once: all of it beforehand.

Each part is looked for first, so that preparing twice tells what was there already.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numba.core.dispatcher import Dispatcher
from numpy.typing import NDArray

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators import kept_masks
from golddiff.estimators.blend import Blend
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.kamb import Kamb
from golddiff.estimators.mirror import OfMirrored
from golddiff.estimators.mixture import GaussianMixture
from golddiff.estimators.network_like import NetworkLike
from golddiff.estimators.pca import MEASURED_AT, PCA
from golddiff.estimators.wiener import Wiener
from golddiff.store.images import ImageStore
from golddiff.support import Support
from golddiff.supports.adaptive import FittedSchedule
from golddiff.supports.index import Index
from golddiff.system.errors import ArgumentError, StoreError
from golddiff.system.files import check_writable

# Images of a plain scan that compiles it: a few tasks of the kernels.
TRIED = 1024

Watch = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Part:
    """One thing that a method keeps.

    Attributes:
        name: what it is.
        there: how many of it were there already.
        made: how many were made now.
        seconds: that this took.
    """

    name: str
    there: int
    made: int
    seconds: float


@dataclass(frozen=True)
class _Item:
    is_there: Callable[[], bool]
    make: Callable[[], object]


def prepare(
    denoiser: Denoiser,
    sigmas: Sequence[float],
    labels: Sequence[int | None] = (None,),
    watch: Watch = lambda name, done, total: None,
) -> list[Part]:
    """Make what ``denoiser(x, sigma, label)`` would make at its first call, and keep it.

    In the store's folder: the covariance factor; what :func:`golddiff.network_like` weighs; masks
    (of images of 512 values and more) and the index of large sets.
    And the compiled kernels, by a few steps of one and two images.

    Args:
        denoiser: any of the package's.
        sigmas: the noise levels that it will be called with.
        labels: the classes.
        watch: called with a part's name, how many of it are done, and of how many.

    Returns:
        The parts that the method has, in the order made.

    Raises:
        ArgumentError: something is to be made and the store's folder cannot be written; a class
            without images.
    """
    store = denoiser.store
    for label in labels:
        store.count_of(label)  # raises where the class has no images
    parts = []
    for name, items in _kept(denoiser, sigmas, labels, watch):
        start, there = time.perf_counter(), 0
        for done, item in enumerate(items):
            watch(name, done, len(items))
            if item.is_there():
                there += 1
                continue
            check_writable("store", store.path / "manifest.json")
            item.make()
        watch(name, len(items), len(items))
        parts.append(Part(name, there, len(items) - there, time.perf_counter() - start))
    return [*parts, _compiled(denoiser, sigmas, labels, watch)]


def _kept(
    denoiser: Denoiser, sigmas: Sequence[float], labels: Sequence[int | None], watch: Watch
) -> Iterator[tuple[str, list[_Item]]]:
    """The parts that lie in the store's folder; a later one may be told by what earlier made."""
    store = denoiser.store
    if _needs_factor(denoiser):
        # Minutes for large images: first its sums over the images, then its eigenvectors.
        def make() -> object:
            return store.factor(progress=lambda done: watch("images summed", done, store.n))

        yield "covariance factor", [_Item(store.factors.is_kept, make)]
    if isinstance(denoiser, NetworkLike):
        yield "weights of network-like", [_Item(lambda: denoiser.is_ready, lambda: denoiser.blend)]
    masks = [
        _mask(store, sigma, threshold)
        for threshold, sigma in dict.fromkeys(
            (threshold, sigma) for sigma in sigmas for threshold in _thresholds(denoiser, sigma)
        )
    ]
    if masks and store.d >= kept_masks.FEWEST_VALUES:
        yield "masks", masks
    schedule = denoiser.schedule if isinstance(denoiser, GoldDiff) else None
    if isinstance(schedule, FittedSchedule) and schedule.indexed:
        yield (
            "index",
            [_Item(lambda: _has_index(store), lambda: Index.build(store, progress=watch))],
        )


def _has_index(store: ImageStore) -> bool:
    try:
        Index.open(store)
    except StoreError:
        return False
    return True


def _mask(store: ImageStore, sigma: float, threshold: float) -> _Item:
    return _Item(
        lambda: kept_masks.load(store, sigma, threshold) is not None,
        lambda: kept_masks.tree_of(store, sigma, threshold),
    )


def _parts_of(denoiser: Denoiser, sigma: float | None = None) -> Iterator[Denoiser]:
    """The denoiser, and those that it is made of; given a sigma, those that have weight there."""
    yield denoiser
    inner: Iterable[Denoiser] = ()
    if isinstance(denoiser, GoldDiff):
        inner = [denoiser.base]
    elif isinstance(denoiser, NetworkLike):
        inner = [denoiser.blend]
    elif isinstance(denoiser, OfMirrored):
        inner = [denoiser.denoiser]
    elif isinstance(denoiser, Blend):
        inner = denoiser.denoisers if sigma is None else denoiser.running_at(sigma)
    for part in inner:
        yield from _parts_of(part, sigma)


def _needs_factor(denoiser: Denoiser) -> bool:
    if isinstance(denoiser, NetworkLike):
        return True  # and what it is made of is found with it
    return any(
        isinstance(part, PCA | Wiener | GaussianMixture) or _measures_patches(part)
        for part in _parts_of(denoiser)
    )


def _measures_patches(part: Denoiser) -> bool:
    return isinstance(part, Kamb) and part.patch_sizes is None


def _thresholds(denoiser: Denoiser, sigma: float) -> Iterator[float]:
    for part in _parts_of(denoiser, sigma):
        if isinstance(part, PCA) and part.share is None:
            yield part.mask_threshold
        elif _measures_patches(part):
            yield MEASURED_AT


def _compiled(
    denoiser: Denoiser, sigmas: Sequence[float], labels: Sequence[int | None], watch: Watch
) -> Part:
    """Take steps, which compile what they run; what is counted is kernels."""
    name, start = "compiled kernels", time.perf_counter()
    compiled, found = _compilations()
    noise = np.random.default_rng(0).standard_normal((2, denoiser.store.d), np.float32)
    levels = _differing(denoiser, sigmas, labels[0])
    for done, sigma in enumerate(levels):
        watch(name, done, len(levels))
        for x in (noise * np.float32(sigma), noise[:1] * np.float32(sigma)):
            _step(denoiser, x, sigma, labels[0])
    watch(name, len(levels), len(levels))
    now_compiled, now_found = _compilations()
    seconds = time.perf_counter() - start
    return Part(name, now_found - found, now_compiled - compiled, seconds)


def _differing(denoiser: Denoiser, sigmas: Sequence[float], label: int | None) -> list[float]:
    """Of the noise levels those whose steps run different kernels."""
    if isinstance(denoiser, GoldDiff) and isinstance(denoiser.schedule, FittedSchedule):
        sides = {denoiser.schedule.comparison(sigma).side: sigma for sigma in sigmas}
        return list(sides.values())
    # A schedule may screen at low noise only.
    return list(dict.fromkeys((max(sigmas), min(sigmas))))


def _step(
    denoiser: Denoiser, x: NDArray[np.float32], sigma: float, label: int | None
) -> NDArray[np.float32]:
    if isinstance(denoiser, Estimator):  # a few images do, where a full scan may take minutes
        rows = denoiser.store.rows_of(label)[:TRIED]
        return denoiser.denoise_over(x, sigma, Support(rows))
    return denoiser.denoise(x, sigma, label)


def _compilations() -> tuple[int, int]:
    """(compiled in this process, found compiled on disk) kernels so far."""
    kernels = {
        value
        for name, module in list(sys.modules.items())
        if name.startswith("golddiff.")
        for value in vars(module).values()
        if isinstance(value, Dispatcher)
    }
    counts = [kernel.stats for kernel in kernels]
    misses = sum(sum(stats.cache_misses.values()) for stats in counts)
    return misses, sum(sum(stats.cache_hits.values()) for stats in counts)


def check_levels(name: str, sigmas: Sequence[float]) -> None:
    """Raise where these are no noise levels.

    Args:
        name: the argument, for the message.
        sigmas: to check.

    Raises:
        ArgumentError: one that is not a finite number above 0.
    """
    for sigma in sigmas:
        if not 0 < sigma < float("inf"):
            raise ArgumentError(f"{name}: got {sigma}, expected finite numbers above 0")
