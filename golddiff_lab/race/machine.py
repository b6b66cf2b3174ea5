"""What this machine can do, measured: the rates that times are held against."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numba import njit

from golddiff.kernels.lanes import LANES, load, spread, sum_of
from golddiff.system.parallel import for_each

MATRIX_SIDE = 2048
COPIED = 1 << 27  # bytes: far more than the caches hold
NEAR = 4096  # float32 numbers that stay in a first-level cache (16 kB)
BLOCK = 1 << 17  # as many as a block of terms of the PCA kernel (0.5 MB): second level
ADDED = 1 << 27  # additions a thread does between two looks at the clock
SECONDS = 0.4  # that each rate is tried for


@dataclass(frozen=True)
class Machine:
    """Measured rates, all threads together.

    Attributes:
        threads: how many.
        float32_matrix: operations/s of a float32 matrix product (2 n^3 of them).
        bfloat16_matrix: the same in bfloat16.
        float32_add: float32 additions/s of a vectorised loop over numbers in the first cache.
        float32_add_block: the same over a block as large as the PCA kernel's terms (0.5 MB).
        copy: bytes/s of copying memory, those read and those written both counted.
    """

    threads: int
    float32_matrix: float
    bfloat16_matrix: float
    float32_add: float
    float32_add_block: float
    copy: float

    def best_of(self, other: Machine) -> Machine:
        """The higher of each rate: what disturbs a measurement only ever lowers it."""
        rates = {f.name: max(getattr(self, f.name), getattr(other, f.name)) for f in fields(self)}
        return Machine(**rates)


def measure(seconds: float = SECONDS) -> Machine:
    """Measure every rate with as many threads as torch uses, for about ``seconds`` each."""
    threads = torch.get_num_threads()
    return Machine(
        threads,
        matrix_rate(torch.float32, MATRIX_SIDE, seconds),
        matrix_rate(torch.bfloat16, MATRIX_SIDE, seconds),
        add_rate(NEAR, ADDED, threads, seconds),
        add_rate(BLOCK, ADDED, threads, seconds),
        copy_rate(COPIED, threads, seconds),
    )


def matrix_rate(dtype: torch.dtype, side: int, seconds: float) -> float:
    """Operations/s of one (side, side) matrix product: 2 side^3 of them."""
    a, b = (torch.ones(side, side, dtype=dtype) for _ in range(2))
    out = torch.empty(side, side, dtype=dtype)
    return 2 * side**3 / fastest(lambda: torch.mm(a, b, out=out), seconds)


def add_rate(numbers: int, additions: int, threads: int, seconds: float) -> float:
    """Float32 additions/s of ``threads`` threads, each over its own run of ``numbers``."""
    buffers = [np.zeros(numbers, np.float32) for _ in range(threads)]
    passes = max(1, additions // numbers)

    def work() -> None:
        for_each(lambda buffer: sum_passes(buffer, passes), buffers)

    return threads * passes * numbers / fastest(work, seconds)


def copy_rate(size: int, threads: int, seconds: float) -> float:
    """Bytes/s of copying ``size`` bytes, cut into a part a thread: 2 * size of them move."""
    source, target = np.zeros(size, np.uint8), np.ones(size, np.uint8)
    parts = list(zip(np.array_split(source, threads), np.array_split(target, threads), strict=True))

    def work() -> None:
        for_each(lambda part: np.copyto(part[1], part[0]), parts)

    return 2 * size / fastest(work, seconds)


def fastest(
    work: Callable[[], object], seconds: float, clock: Callable[[], float] | None = None
) -> float:
    """Seconds of the fastest run of ``work`` out of those that fit in ``seconds``, at least two.

    One run comes before, uncounted: it compiles, and brings memory in. By the wall's clock unless
    another is given.
    """
    clock = time.perf_counter if clock is None else clock
    work()
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 2 or spent < seconds:
        start = clock()
        work()
        took = clock() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return best


@njit(nogil=True, cache=True)  # type: ignore[untyped-decorator]
def sum_passes(buffer: Any, passes: int) -> Any:
    """Add up a float32 array ``passes`` times: passes * len(buffer) additions.

    ``len(buffer)`` is a multiple of 8 * LANES. Eight sums: none waits for another's addition.
    """
    a = b = c = d = e = f = g = h = spread(np.float32(0.0))
    for _ in range(passes):
        for i in range(0, len(buffer), 8 * LANES):
            a = a + load(buffer, i)
            b = b + load(buffer, i + LANES)
            c = c + load(buffer, i + 2 * LANES)
            d = d + load(buffer, i + 3 * LANES)
            e = e + load(buffer, i + 4 * LANES)
            f = f + load(buffer, i + 5 * LANES)
            g = g + load(buffer, i + 6 * LANES)
            h = h + load(buffer, i + 7 * LANES)
    return sum_of(((a + b) + (c + d)) + ((e + f) + (g + h)))
