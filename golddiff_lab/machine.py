"""Measure the speed of a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from golddiff_lab.timing import CPU, timed

MATRIX_SIDE, COPIED = 2048, 1 << 27
ON_A_GPU, COPIED_ON_A_GPU = 8192, 1 << 31
RUNS = 8


@dataclass(frozen=True)
class Rates:
    """Best measured rates of a device, with all threads together.

    Attributes:
        threads: number of CPU threads.
        matrix: operations/s of a float32 matrix product (2 n^3 operations).
        copy: bytes/s of a memory copy, counting both bytes read and bytes written.
    """

    threads: int
    matrix: float
    copy: float


def measure(device: torch.device = CPU) -> Rates:
    """Time a product of large random matrices, and a copy much larger than the caches."""
    gpu = device.type != "cpu"
    side = ON_A_GPU if gpu else MATRIX_SIDE
    size = COPIED_ON_A_GPU if gpu else COPIED
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    source = torch.zeros(size, dtype=torch.uint8, device=device)
    target = torch.ones_like(source)

    def fastest(work: Callable[[], object]) -> float:
        work()  # warm up: compiles, and wakes an idle device
        return min(timed(work, device).seconds for _ in range(RUNS))

    return Rates(
        torch.get_num_threads(),
        2 * side**3 / fastest(lambda: a @ b),
        2 * size / fastest(lambda: target.copy_(source)),
    )
