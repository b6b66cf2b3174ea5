"""A refusal beforehand where a limit on address space (``ulimit -v``) leaves too little.

What is over such a limit ends a program anywhere, often inside a library that then aborts.
"""

from __future__ import annotations

import math

from golddiff.store.images import ImageStore
from golddiff.system.errors import ArgumentError
from golddiff.system.units import byte_size

# What a run brings in after its store is open: compiled kernels and the libraries that they need.
# Measured on CIFAR-10, golddiff-pca, one thread: 0.48 GB, 0.08 GB of it the factor.
LIBRARIES = 400e6
A_THREAD = 128e6  # stack, and malloc's own arena
FACTORS = 2  # arrays of (D, D) float64 at a time: the factor's own, and what is computed of it


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


def check_address_space(store: ImageStore, threads: int) -> None:
    """Raise where a run over a store takes more address space than is left."""
    room = left()
    needed = LIBRARIES + A_THREAD * (threads - 1) + FACTORS * 8 * store.d * min(store.d, store.n)
    if room < needed:
        raise ArgumentError(
            f"memory: this run needs about {byte_size(int(needed))} more address space and "
            f"{byte_size(int(max(0.0, room)))} is left; raise the limit (ulimit -v) by "
            f"{byte_size(int(needed - room))} or more"
        )
