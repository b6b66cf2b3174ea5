"""Keeping within a limit on address space (``ulimit -v``): smaller chunks, or a refusal beforehand.

What is over such a limit ends a program anywhere, often inside a library that then aborts.
"""

from __future__ import annotations

import math

from golddiff.denoiser import Denoiser, Estimator
from golddiff.estimators.golden import GoldDiff
from golddiff.estimators.network_like import NetworkLike
from golddiff.system.errors import ArgumentError
from golddiff.system.units import byte_size

# What a run brings in after its store is open: compiled kernels and the libraries that they need.
# Measured on CIFAR-10, golddiff-pca, one thread: 0.48 GB, 0.08 GB of it the factor.
LIBRARIES = 400e6
A_THREAD = 128e6  # stack, and malloc's own arena
FACTORS = 2  # arrays of (D, D) float64 at a time: the factor's own, and what is computed of it
LEAST_CHUNK = 64e6


def left() -> float:
    """Bytes of address space that this process may still take; infinite where nothing limits it."""
    try:
        import resource

        limit, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit == resource.RLIM_INFINITY:
            return math.inf
        with open("/proc/self/statm", "rb") as file:
            return float(limit - int(file.read().split()[0]) * resource.getpagesize())
    except (ImportError, OSError, ValueError):
        return math.inf


def fit(denoiser: Denoiser, threads: int) -> None:
    """Make a denoiser's chunks small enough for the address space that is left."""
    room = left()
    if math.isinf(room):
        return
    d = denoiser.store.d
    needed = LIBRARIES + A_THREAD * (threads - 1) + FACTORS * 8 * d * min(d, denoiser.store.n)
    if room < needed + LEAST_CHUNK:
        more = byte_size(int(needed + LEAST_CHUNK - room))
        raise ArgumentError(
            f"memory: this run needs about {byte_size(int(needed + LEAST_CHUNK))} more address "
            f"space and {byte_size(int(max(0.0, room)))} is left; raise the limit (ulimit -v) by "
            f"{more} or more"
        )
    for estimator in estimators(denoiser):
        estimator.memory_limit = min(estimator.memory_limit, (room - needed) / 2)


def estimators(denoiser: Denoiser) -> list[Estimator]:
    """The estimators that a denoiser is made of, whose chunks have a size."""
    if isinstance(denoiser, Estimator):
        return [denoiser]
    if isinstance(denoiser, GoldDiff):
        return estimators(denoiser.base)
    if isinstance(denoiser, NetworkLike):
        return [e for part in denoiser.parts(0.0) for e in estimators(part)]
    return []
