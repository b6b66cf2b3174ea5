"""Times, peak memory and ceilings of a device."""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Ceilings:
    """What a device was measured to do at best.

    Attributes:
        copy: bytes a second, read and written both counted.
        matrix: operations a second of a matrix product, float16 on a GPU, float32 on a CPU.
    """

    copy: float
    matrix: float


def seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The median time of a call, after one that is not counted."""
    work()
    times = []
    for _ in range(repeats):
        _wait(device)
        start = time.perf_counter()
        work()
        _wait(device)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def ceilings(device: torch.device, quick: bool) -> Ceilings:
    """Measure a copy many times the cache, and a large square product on random numbers."""
    large = device.type == "cuda" and not quick
    return Ceilings(
        _copy_rate(device, 1 << 31 if large else 1 << 24),
        _matrix_rate(device, 8192 if large else 512),
    )


def _copy_rate(device: torch.device, count: int) -> float:
    source = torch.zeros(count, dtype=torch.uint8, device=device)
    target = torch.zeros_like(source)
    return 2 * count / seconds(lambda: target.copy_(source), device, 10)


def _matrix_rate(device: torch.device, side: int) -> float:
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / seconds(lambda: a @ b, device, 10)


def start_counting_memory(device: torch.device) -> None:
    """Forget the peak so far, and what the allocator keeps for later."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int:
    """The most memory in use since; on a CPU of the whole process since it began."""
    if device.type == "cuda":
        peak: int = torch.cuda.max_memory_allocated(device)
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
